"""benchmarks/diagnosis.py plants causes that rules name, and counts right."""

import sys
from pathlib import Path

import pytest

from framework.commands.diagnose import rank_rules
from framework.commands.diagnose.rules import RULES
from framework.commands.paired_test import Pairs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import diagnosis

    yield diagnosis
    for name in [name for name in sys.modules if name.split(".")[0] in ("planted", "diagnosis")]:
        del sys.modules[name]


def test_every_planted_cause_has_a_rule_and_a_name_of_its_own(bench):
    every = bench.every_planted()
    assert {planted.cause for planted in every} <= {
        rule.__name__ for rule in (*RULES, *rank_rules.RULES)
    }
    assert len({planted.name for planted in every}) == len(every)


def result_of(bench, number, cause, predicted, rates):
    planted = bench.every_planted()[number]
    return bench.Result(planted, cause, "", predicted, Pairs((100.0,), (rates,)), 30.0)


def test_the_table_counts_right_causes_and_close_predictions(bench):
    first, second = (planted.cause for planted in bench.every_planted()[:2])
    results = [
        result_of(bench, 0, first, 2.0, 190.0),
        result_of(bench, 1, "none", 2.0, 100.0),
    ]
    table = bench.table(results)
    assert "right cause: 1 of 2; predicted within 20 %: 1 of 2" in table
    assert f"| none | NO, {second} | 2.00 | 1.00 ± 0.00 | +100 % | 30 s |" in table


def test_the_matrix_has_a_row_per_planted_cause(bench):
    first, second = (planted.cause for planted in bench.every_planted()[:2])
    results = [result_of(bench, number, first, 1.0, 100.0) for number in (0, 0, 1)]
    lines = bench.confusion(results).splitlines()
    assert lines[2] == f"| {first} | 2 | . |"
    assert lines[3] == f"| {second} | 1 | . |"
