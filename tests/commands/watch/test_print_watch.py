"""What ``paceline watch`` prints."""

import json
from dataclasses import replace

from framework.commands.watch.print_watch import show_watch, watch_json
from framework.diagnosis.facts import Sync
from tests.diagnosis.test_script_rules import FACTS


def test_headline_spans_and_advice_are_printed(capsys):
    sync = Sync(__file__, 3, "item()", 2, "loss.item()")
    show_watch(replace(FACTS, syncs=(sync,), validation_s=1.0, ranks=2))
    out = capsys.readouterr().out
    assert out.startswith("\npaceline watch: Data limits training: wait takes 67 %")
    for words in (
        "where the time of 10 training steps went",
        "pack_items: 2.91 times as fast (by the model)",
        "type: paceline pack input=dataset",
        "write: DataLoader(..., num_workers=4, persistent_workers=True)",
        "item(), 2 times: loss.item()",
        "validation 1.00 s",
        "figures of rank 0 of 2",
        "in Paceline: paceline train data=dataset",
    ):
        assert words in out


def test_all_figures_are_plain_values():
    result = json.loads(json.dumps(watch_json(FACTS)))
    assert result["spans"]["wait"]["share"] > 0.6
    assert result["verdicts"][0]["rule"] == "more_workers"
    assert result["facts"]["loader"]["batch_size"] == 10
