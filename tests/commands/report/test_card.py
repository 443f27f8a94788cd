from dataclasses import replace

import pytest

from framework.commands.report.card import cards
from framework.commands.report.read_run import read_run
from framework.commands.report.recorded_run import RecordedRun
from framework.contracts.rank_spans import LateRank, RankReport
from tests.commands.report.runs import make_run

RANKS = RankReport(2, {}, LateRank(1, "forward", 0.98, 0.0309, 0.56, 0.0))


def of(paths):
    runs = [read_run(path) for path in paths]
    names = [path.name for path in paths]
    return {card.title: card for card in cards(runs, names)}


def test_runs_are_named_by_what_differs(tmp_path):
    by_title = of(
        [
            make_run(tmp_path / "slow", slow=2.0),
            make_run(tmp_path / "fast"),
            make_run(tmp_path / "bad", code=1),
        ]
    )
    assert by_title["Runs"].detail == "2 finished, 1 failed"
    assert "Fastest" not in by_title
    assert "median of 2 runs of one choice, repeats differ by" in by_title["Speed"].detail
    assert by_title["Learned"].value == "the same"


def test_only_what_the_test_finds_is_called_the_fastest(tmp_path):
    def paths(name, slow):
        words = [(f"loader={name}", f"seed={seed}") for seed in range(5)]
        return [
            make_run(tmp_path / "".join(choice), choice, slow=slow + seed / 100)
            for seed, choice in enumerate(words)
        ]

    by_title = of([*paths("plain", 2.0), *paths("stream", 1.0)])
    assert "Mann-Whitney U, p <= 0.01 against every other" in by_title["Fastest"].detail
    again = of([*paths("prefetch", 2.0), *paths("other", 2.001)])
    assert "Fastest" not in again
    assert again["Speed"].value == "no difference can be claimed"
    assert "no difference found: Mann-Whitney U" in again["Speed"].detail


def made(loader, rates, loads=(), **changes):
    """Return runs of one choice that took turns with others."""
    loads = [*loads, *[0.0] * len(rates)]
    return [
        RecordedRun(
            f"{loader}{seed}",
            f"{loader}{seed}",
            choices={"loader": loader, "seed": str(seed)},
            records_per_s=rate,
            resources={"usage.others_cpu_cores": loads[seed]},
            **changes,
        )
        for seed, rate in enumerate(rates)
    ]


def shown(runs):
    return {card.title: card for card in cards(runs, [run.name for run in runs])}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"what": "train"}, {"what": "loader"}),
        ({"facts": {"machine.num_cores": 2}}, {"facts": {"machine.num_cores": 4}}),
    ],
)
def test_other_parts_and_other_machines_are_not_compared(first, second):
    runs = [*made("plain", [1.0] * 5, **first), *made("stream", [9.0] * 5, **second)]
    assert {"Fastest", "Speed"}.isdisjoint(shown(runs))


def test_runs_that_differ_without_repeats_are_not_tested(tmp_path):
    by_title = of(
        [
            make_run(tmp_path / name, (f"loader={name}",), slow=slow)
            for name, slow in (("plain", 2.0), ("stream", 1.0))
        ]
    )
    assert by_title["Speed"].value == "no difference can be claimed"
    assert "not tested: that takes 5 processes of each" in by_title["Speed"].detail
    assert "times the slowest" not in by_title["Speed"].detail


def test_runs_beside_other_programs_are_not_compared(tmp_path):
    """Rates that differ 8 times, with programs on the cores."""
    runs = [
        RecordedRun(
            f"{name}{seed}",
            f"{name}{seed}",
            choices={"loader": name, "seed": str(seed)},
            records_per_s=rate + seed,
            resources={"usage.others_cpu_cores": load},
        )
        for name, rate, load in (("plain", 814.0, 0.0), ("stream", 100.0, 1.4))
        for seed in range(5)
    ]
    by_title = {card.title: card for card in cards(runs, [run.name for run in runs])}
    assert "Fastest" not in by_title
    assert by_title["Speed"].value == "no difference can be claimed"
    assert "other programs kept up to 1.4 cores busy" in by_title["Speed"].detail


def test_runs_that_learned_differently_are_not_called_the_same(tmp_path):
    lines = [{"step": 1, "split": "train", "loss": 9.0, "lr": 1}]
    by_title = of(
        [make_run(tmp_path / "a"), make_run(tmp_path / "b"), make_run(tmp_path / "c", lines=lines)]
    )
    assert by_title["Learned"].value == "2 ways"
    assert by_title["Lowest validation loss"].detail == "a"


def test_a_failed_run_says_why(tmp_path):
    by_title = of(
        [make_run(tmp_path / "a", code=6, reason="error[N101]: the loss is nan", lines=[])]
    )
    assert (by_title["Status"].value, by_title["Speed"].value) == ("failed", "\N{EN DASH}")
    assert "N101" in by_title["Status"].detail


def test_a_rank_for_which_the_others_wait_has_a_card(tmp_path):
    run = replace(read_run(make_run(tmp_path / "a")), ranks=RANKS)
    card = {card.title: card for card in cards([run], ["a"])}["Waiting for a rank"]
    assert (card.value, card.detail) == (
        "56.0 %",
        "of the run lost by the others, in forward of rank 1",
    )
