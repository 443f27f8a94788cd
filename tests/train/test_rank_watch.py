"""What ranks tell of themselves at reports; with delays planted in one of several real ranks."""

import json

import pytest

from framework.contracts.span import ALL_SPANS
from framework.measure.clock import HostClock, RankClock
from framework.parallel.launch.start_ranks import launch
from framework.train.rank_watch import RankWatch
from tests.fakes import make_trainer, span
from tests.parallel.launching import ENVIRONMENT

PLACES = {"data": "wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def reported(folder, kind, cases, count):
    """Run the cases on ``count`` ranks, and return what each rank reports of each case."""
    ended = launch(
        count, "tests.train.late_program", [kind, ",".join(cases), str(folder)], ENVIRONMENT
    )
    assert ended == 0
    texts = [(folder / f"{rank}.json").read_text() for rank in range(count)]
    return [dict(zip(cases, json.loads(text), strict=True)) for text in texts]


def named(report):
    return report["late"] and (report["late"]["rank"], report["late"]["span"])


def test_a_delay_of_one_of_two_ranks_is_found_in_its_place(tmp_path):
    cases = {f"none:{place}:1": (1, name) for place, name in PLACES.items()}
    cases |= {f"{norm}:forward:1": (1, "forward") for norm in ("sync", "plain")}
    first, second = reported(tmp_path, "ddp", list(cases), 2)
    assert {case: named(report) for case, report in first.items()} == cases
    spans = first["none:forward:1"]["spans"]
    assert list(spans) == [name for name in ALL_SPANS if name != "copy"]
    assert spans["forward"]["rank"] == 1
    assert spans["forward"]["max_s"] > 0.04 > spans["forward"]["min_s"]
    assert spans["exchange"]["rank"] == 0
    assert first["none:data:1"]["reports"] == [2] * 4
    assert second["none:data:1"]["reports"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "cases"),
    [
        ("ddp", 4, [("some data", 2), ("forward", 3), ("backward", 0), ("optimizer", 1)]),
        ("fsdp", 3, [("data", 1), ("forward", 2), ("backward", 1), ("optimizer", 0)]),
        ("virtual", 2, [("data", 0), ("forward", 1), ("backward", 1)]),
    ],
)
def test_a_delay_is_found_among_more_ranks_and_in_every_parallel(tmp_path, kind, count, cases):
    norms = ["none"] if kind == "virtual" else ["none", "sync"]
    texts = [f"{norm}:{place}:{rank}" for norm in norms for place, rank in cases]
    reports = reported(tmp_path, kind, texts, count)[0]
    expected = [(rank, {**PLACES, "some data": "wait"}[place]) for place, rank in cases]
    assert [named(report) for report in reports.values()] == expected * len(norms)


def test_one_rank_gathers_nothing():
    trainer = make_trainer(clock=RankClock())
    trainer.fit()
    assert trainer.ranks.whole is None


class Alike:
    """Two ranks that measure the same."""

    rank, world_size = 0, 2

    def gather(self, values):
        return [values, values]


class Fixed(HostClock):
    """A clock with rows of its own."""

    def __init__(self, rows, time_base=1.0):
        super().__init__()
        self.rows, self.time_base = rows, time_base

    def own_work(self):
        return self.rows


def test_ranks_that_are_alike_have_the_same_spans_and_are_not_late():
    rows = [(float(number), number + 0.5, 0.1, *[0.05] * 6) for number in range(20)]
    watch = RankWatch(Fixed(rows), Alike())
    report = watch.take({"forward": span(0.5, 1.5), "exchange": span(0.25)})
    assert report.as_dict() == {
        "num": 2,
        "spans": {
            "forward": {"min_s": 1.0, "median_s": 1.0, "max_s": 1.0, "rank": 0},
            "exchange": {"min_s": 0.25, "median_s": 0.25, "max_s": 0.25, "rank": 0},
        },
        "late": None,
    }
    watch.take({"forward": span(4.0)})
    assert watch.whole.spans["forward"].max_s == pytest.approx(2.0)


def test_a_report_without_whole_steps_names_nobody():
    report = RankWatch(Fixed([]), Alike()).take({"report": span(0.5)})
    assert report.late is None


def test_another_clock_measures_nothing():
    assert RankWatch(HostClock(), Alike()).take({"forward": span(1.0)}) is None
