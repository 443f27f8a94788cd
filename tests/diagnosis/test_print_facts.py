import json
import shlex
from dataclasses import replace

from framework.diagnosis import code_lines, judge, print_facts
from framework.diagnosis.facts import UNKNOWN, Repack, Verdict
from framework.measure.statistics import Pairs
from tests.diagnosis.cases import LATE, facts, rank_facts
from tests.diagnosis.test_judge import SCRIPT

ADVICE = Verdict("raise_workers", "no workers", "decoding", 1.5, ("workers.num=4",))
FAILED = Verdict("processes", "s", "w", 1.2, ("workers.kind=process",), failed="no memory")
FOUND = judge.Diagnosis(facts(), "raise_workers", "Data limits.", (ADVICE,), (FAILED,), 30.0)


def train_words(words):
    return ["train", "--config-dir", "my folder", "epochs=3", *words]


def test_the_limit_comes_first_and_each_advice_has_its_command(capsys):
    print_facts.show(FOUND, train_words)
    out = capsys.readouterr().out
    assert out.startswith("Data limits.\n")
    assert "1. raise_workers: 1.50 times" in out
    assert "paceline train --config-dir 'my folder' epochs=3 workers.num=4" in out
    assert "processes (no memory)" in out


def test_every_part_has_a_row_and_one_that_was_not_measured_says_so():
    rows = print_facts.part_rows(facts(other=None, copy=None, read=None))
    by_name = {name: row for name, *row in rows}
    assert "computing 32 records a step" not in by_name
    assert by_name["reading the store"] == ["-", "", "not measured"]
    assert by_name["computing"][1] == "64.00"  # ms a step of 64 records at 1,000 records/s


def test_what_was_applied_stands_beside_what_was_predicted(capsys):
    comparison = Pairs((100.0, 100.0, 100.0), (140.0, 140.0, 140.0))
    print_facts.show_applied(judge.Applied(ADVICE, comparison, "on a sample"))
    out = capsys.readouterr().out
    assert "on a sample" in out
    assert "predicted 1.50" in out
    assert "measured 1.40" in out


def shown(capsys, **changes):
    print_facts.show_ranks(rank_facts(**changes), lambda words: ["train", "parallel=ddp", *words])
    return capsys.readouterr().out


def test_the_cause_comes_first_then_the_spans_then_the_advice(capsys):
    out = shown(capsys, late=LATE, exchange_share=0.1, sync_batch_norm=True, unsynced_s=0.099)
    assert out.startswith("Ranks limit training. Rank 1 is late in 98 % of the steps")
    assert "a step of 2 ranks, over 40 steps" in out
    row = next(line for line in out.splitlines() if "forward" in line and "slowest" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("forward", "10.00", "20.00", "30.00", "slowest: rank 1")
    ]
    assert "100.00 ms a step: exchanges alone 10 %, waiting for ranks 0 %" in out
    assert "1. slow_rank: 1.67 times as fast (by the model)" in out
    assert "paceline train parallel=ddp parallel.sync_batch_norm=false" in out


def test_all_figures_of_ranks_are_plain_values():
    plain = print_facts.ranks_as_json(rank_facts(late=LATE), ["parallel=ddp"], 9.5)
    read = json.loads(json.dumps(plain))
    assert (read["cause"], read["seconds"]) == ("slow_rank", 9.5)
    assert read["facts"]["ranks"]["late"]["rank"] == 1
    assert read["verdicts"][0]["rule"] == "slow_rank"
    assert print_facts.ranks_as_json(rank_facts(), [], 0.0)["cause"] == ""


def test_headline_spans_and_advice_are_printed(capsys):
    sync = code_lines.Sync(__file__, 3, "item()", 2, "loss.item()")
    print_facts.show_watch(replace(SCRIPT, syncs=(sync,), validation_s=1.0, ranks=2))
    out = capsys.readouterr().out
    assert out.startswith("\npaceline watch: Data limits training: wait takes 67 %")
    for words in (
        "where the time of 10 training steps went",
        "pack_items: 2.91 times as fast (by the model)",
        "type: paceline pack input=dataset",
        "write: DataLoader(..., num_workers=4, persistent_workers=True)",
        *("item(), 2 times: loss.item()", "validation 1.00 s", "figures of rank 0 of 2"),
        "in Paceline: paceline train data=dataset",
    ):
        assert words in out


def test_advice_about_a_store_packs_it_first():
    verdict = Verdict("r", "s", "w", 1.5, repack=Repack("folder", {"train": ("photos", "packed")}))
    lines = [
        line.strip()
        for line in print_facts.advice_lines(1, verdict, lambda more: ["train", "epochs=3", *more])
    ]
    commands = [shlex.split(line) for line in lines if line.startswith("paceline ")]
    assert [command[1] for command in commands] == ["pack", "train"]
    assert "output.path=packed.h5" in commands[0]


def test_a_gain_that_nobody_can_predict_is_said_to_be_tried():
    edit = Verdict("fewer_workers", "s", "w", UNKNOWN, edit="DataLoader(...)")
    assert (
        print_facts.advice_lines(2, edit)[0]
        == "2. fewer_workers: the gain is not predictable, so try it"
    )
    assert print_facts.advice_lines(2, edit)[-1] == "   write: DataLoader(...)"
