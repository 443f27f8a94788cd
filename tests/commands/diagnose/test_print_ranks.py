import json

from framework.commands.diagnose import print_ranks
from framework.commands.diagnose.rank_rules import rank_cause, rank_verdicts
from tests.commands.diagnose.ranks import LATE, rank_facts


def shown(capsys, **changes):
    facts = rank_facts(**changes)
    verdicts = rank_verdicts(facts)
    cause = rank_cause(facts, verdicts)
    print_ranks.show(facts, verdicts, cause, lambda words: ["parallel=ddp", *words], None)
    return capsys.readouterr().out


def test_the_cause_comes_first_then_the_spans_then_the_advice(capsys):
    out = shown(capsys, late=LATE, exchange_share=0.1, sync_batch_norm=True, unsynced_s=0.099)
    assert out.startswith("Ranks limit training. Rank 1 is late in 98 % of the steps")
    assert "a step of 2 ranks, over 40 steps" in out
    row = next(line for line in out.splitlines() if "forward" in line and "slowest" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("forward", "10.00", "20.00", "30.00", "slowest: rank 1"),
    ]
    assert "100.00 ms a step: exchanges alone 10 %, waiting for ranks 0 %" in out
    assert "1. slow_rank: 1.67 times as fast (by the model)" in out
    assert "paceline train parallel=ddp parallel.sync_batch_norm=false" in out


def test_all_figures_are_plain_values():
    facts = rank_facts(late=LATE)
    verdicts = rank_verdicts(facts)
    plain = print_ranks.as_json(facts, verdicts, verdicts[0], ["parallel=ddp"], 9.5)
    read = json.loads(json.dumps(plain))
    assert (read["cause"], read["seconds"]) == ("slow_rank", 9.5)
    assert read["facts"]["ranks"]["late"]["rank"] == 1
    assert read["verdicts"][0]["rule"] == "slow_rank"
    assert print_ranks.as_json(facts, [], None, [], 0.0)["cause"] == ""
