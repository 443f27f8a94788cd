import numpy as np
import pytest

from framework.commands.bench.bench_lines import Bench, BenchCell
from framework.commands.bench.compare_benches import (
    BROKEN,
    FASTER,
    MENDED,
    NEITHER,
    NOISE,
    ONLY_AFTER,
    ONLY_BEFORE,
    SLOWER,
    DecisionRule,
    judged,
    notes,
    print_verdicts,
)

DEFAULT = DecisionRule()
STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def measured(rates, data: str = "hdf5", illegal: str = "") -> BenchCell:
    return BenchCell(
        {"data": data}, {(0, repeat): rate for repeat, rate in enumerate(rates)}, illegal=illegal
    )


def word(before, after, rule: DecisionRule = DEFAULT) -> str:
    return judged([measured(before)], [measured(after)], rule)[0].word


def test_ten_percent_slower_is_slower_and_the_other_way_faster():
    slower = [0.9 * rate for rate in STEADY]
    assert word(STEADY, slower) == SLOWER
    assert word(slower, STEADY) == FASTER
    assert judged([measured(STEADY)], [measured(slower)], DecisionRule())[
        0
    ].change == pytest.approx(-0.1)


def test_a_sure_difference_below_the_threshold_does_not_matter():
    slower = [0.975 * rate for rate in STEADY]
    assert word(STEADY, slower) == NOISE
    assert word(STEADY, slower, DecisionRule(threshold=0.02)) == SLOWER


@pytest.mark.parametrize("kind", ["normal", "two humps", "long tail"])
def test_chance_alone_passes_at_most_once_in_a_hundred(kind):
    rng = np.random.default_rng(0)
    draw = {
        "normal": lambda: rng.normal(100, 5, 5),
        "two humps": lambda: rng.normal(100, 1, 5) - 20 * (rng.random(5) < 0.5),
        "long tail": lambda: 100 / (1 + 0.02 * rng.pareto(1.5, 5)),
    }[kind]
    words = [word(list(draw()), list(draw())) for _ in range(1000)]
    assert sum(verdict != NOISE for verdict in words) <= 20  # 8 are expected


def test_cells_of_one_side_and_cells_that_do_not_run_are_reported():
    before = [
        measured(STEADY, "a"),
        measured(STEADY, "b"),
        measured([], "c", "why"),
        measured([], "d", "why"),
    ]
    after = [
        measured([], "b", "why"),
        measured(STEADY, "c"),
        measured([], "d", "why"),
        measured(STEADY, "e"),
    ]
    verdicts = judged(before, after, DecisionRule())
    words = {verdict.choice["data"]: verdict.word for verdict in verdicts}
    assert words == {"a": ONLY_BEFORE, "b": BROKEN, "c": MENDED, "d": NEITHER, "e": ONLY_AFTER}
    assert [verdict.choice["data"] for verdict in verdicts if verdict.regressed] == ["b"]


def bench(speeds=(), **changes) -> Bench:
    header = {
        "machine": {"processor": "x", "num_cores": 2},
        "versions": {"torch": "2.13"},
        "overrides": [],
        "seconds": 2.0,
        "burn_in": 0.5,
    }
    lines = [{"repeat": repeat, "yardstick_per_s": speed} for repeat, speed in enumerate(speeds)]
    return Bench({**header, **changes}, lines)


def test_another_machine_another_version_and_other_settings_are_said():
    other = bench(
        machine={"processor": "y", "num_cores": 2},
        versions={"torch": "2.14"},
        overrides=["workers.num=2"],
    )
    assert list(notes([bench()], [other], DEFAULT)) == [
        "another machine: processor was x, is y",
        "another version: torch was 2.13, is 2.14",
        "measured differently: overrides was empty, is workers.num=2",
    ]


def test_a_machine_that_was_itself_slower_is_said():
    slower = bench([0.9 * speed for speed in STEADY])
    (note,) = notes([bench(STEADY)], [slower], DEFAULT)
    assert note.startswith("the machine itself was 10.0% slower in the second, ")
    same = bench([0.98 * speed for speed in STEADY])
    assert list(notes([bench(STEADY)], [same], DEFAULT)) == []


def test_a_comparison_has_a_row_per_cell(capsys):
    before, after = [measured([100.0] * 6, "a")], [measured([50.0] * 6, "a"), measured([1.0], "b")]
    print_verdicts(judged(before, after, DEFAULT), "train")
    out = capsys.readouterr().out
    assert "-50.0%" in out
    assert "only in the second" in out
