import pytest

from framework.commands.report.page_values import (
    cards,
    ranks_table,
    relative,
    remarks,
    runs_table,
)
from framework.commands.report.recorded_runs import RecordedRun, read_run
from framework.contracts.span import LateRank, RankReport, RankSpan
from framework.system.run_dir import read_object
from tests.commands.report.runs import MACHINE, make_run
from tests.saved_runs import change

LATE = LateRank(1, "forward", 0.98, 0.0309, 0.56)
RANKS = RankReport(2, {"forward": RankSpan(0.001, 0.002, 0.033, 1)}, LATE)


def shown(runs):
    return {card.title: card for card in cards(runs, [run.name for run in runs])}


def cards_of(*paths):
    return shown([read_run(path) for path in paths])


def repeats(loader, rates, load=0.0, **changes):
    """Return runs of one choice that took turns with others."""
    return [
        RecordedRun(
            f"{loader}{seed}",
            f"{loader}{seed}",
            choices={"loader": loader, "seed": str(seed)},
            records_per_s=rate,
            resources={"usage.others_cpu_cores": load},
            **changes,
        )
        for seed, rate in enumerate(rates)
    ]


def test_repeats_of_one_choice_have_their_median_and_spread(tmp_path):
    by_title = cards_of(
        make_run(tmp_path / "slow", slow=2.0),
        make_run(tmp_path / "fast"),
        make_run(tmp_path / "bad", code=1),
    )
    assert by_title["Runs"].detail == "2 finished, 1 failed"
    assert "Fastest" not in by_title
    assert "median of 2 runs of one choice, repeats differ by" in by_title["Speed"].detail
    assert by_title["Learned"].value == "the same"


def test_only_what_the_test_finds_is_called_the_fastest():
    slow = [100.0 + seed for seed in range(5)]
    fast = shown([*repeats("plain", slow), *repeats("stream", [2 * rate for rate in slow])])
    assert "Mann-Whitney U, p <= 0.01 against every other" in fast["Fastest"].detail
    same = shown([*repeats("plain", slow), *repeats("stream", [rate + 0.1 for rate in slow])])
    assert "Fastest" not in same
    assert same["Speed"].value == "no difference can be claimed"
    assert "no difference found: Mann-Whitney U" in same["Speed"].detail


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"what": "train"}, {"what": "loader"}),
        ({"facts": {"machine.num_cores": 2}}, {"facts": {"machine.num_cores": 4}}),
    ],
    ids=["part", "machine"],
)
def test_other_parts_and_other_machines_are_not_compared(first, second):
    runs = [*repeats("plain", [1.0] * 5, **first), *repeats("stream", [9.0] * 5, **second)]
    assert {"Fastest", "Speed"}.isdisjoint(shown(runs))


@pytest.mark.parametrize(
    ("count", "load", "why"),
    [
        (1, 0.0, "not tested: that takes 5 processes of each"),
        (5, 1.4, "other programs kept up to 1.4 cores busy"),
    ],
    ids=["few", "busy"],
)
def test_without_repeats_and_beside_other_programs_nothing_is_claimed(count, load, why):
    by_title = shown([*repeats("plain", [800.0] * count), *repeats("x", [100.0] * count, load)])
    assert by_title["Speed"].value == "no difference can be claimed"
    assert why in by_title["Speed"].detail


def test_runs_that_learned_differently_are_not_called_the_same(tmp_path):
    lines = [{"step": 1, "split": "train", "loss": 9.0, "lr": 1}]
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    by_title = cards_of(*runs, make_run(tmp_path / "c", lines=lines))
    assert by_title["Learned"].value == "2 ways"
    assert by_title["Lowest validation loss"].detail == "a"


def test_a_failed_run_says_why(tmp_path):
    by_title = cards_of(make_run(tmp_path / "a", code=6, reason="error[N101]: nan", lines=[]))
    assert (by_title["Status"].value, by_title["Speed"].value) == ("failed", "\N{EN DASH}")
    assert "N101" in by_title["Status"].detail


def test_different_machines_are_warned_of(tmp_path):
    other = {**MACHINE, "processor": "another"}
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", machine=other)]
    notes = remarks([read_run(path) for path in paths])
    assert "2 different machines" in notes[0].text
    assert notes[0].numbers == [0, 1]


# Tables


def column(table, name):
    place = [title for title, _ in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_every_run_has_a_row_and_sorts_by_numbers(tmp_path):
    make_run(tmp_path / "a", slow=2.0)
    make_run(tmp_path / "b")
    make_run(tmp_path / "c", code=2, reason="wrong", lines=[])
    runs = [read_run(tmp_path / name) for name in "abc"]
    table = runs_table(runs, ["slow", "fast", "failed"], relative(runs, "first"))
    assert [row[1].text for row in table.rows] == ["slow", "fast", "failed"]
    times = column(table, "time, \N{MULTIPLICATION SIGN} #0")
    assert [(cell.text, cell.sort) for cell in times] == [
        ("1.00\N{MULTIPLICATION SIGN}", 1.0),
        ("0.50\N{MULTIPLICATION SIGN}", 0.5),
        ("\N{EN DASH}", None),
    ]
    assert [cell.mark for cell in column(table, "status")] == ["finished", "finished", "failed"]


def test_ranks_have_a_card_of_the_late_one_and_a_table_of_the_slowest(tmp_path):
    paths = [make_run(tmp_path / name) for name in "ab"]
    assert "ranks" not in read_object(paths[0] / "summary.json")
    change(paths[1] / "summary.json", ranks=RANKS.as_dict())
    runs = [read_run(path) for path in paths]
    card = shown(runs[1:])["Waiting for a rank"]
    lost = "of the run lost by the others, in forward of rank 1"
    assert (card.value, card.detail) == ("56.0 %", lost)
    table = ranks_table(runs, ["a", "b"])
    assert [cell.text for cell in column(table, "ranks")] == ["\N{EN DASH}", "2"]
    cell = column(table, "forward")[1]
    assert (cell.text, cell.details) == ("33 ms", ("rank 1", "1 ms | 2 ms"))
    assert ranks_table(runs[:1], ["a"]).rows == []
