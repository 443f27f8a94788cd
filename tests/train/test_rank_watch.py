"""Who makes whom wait: from times that are known exactly, and with delays among real ranks."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.contracts.span import ALL_SPANS, SPANS
from framework.measure.clock import HostClock, NoClock
from framework.parallel.start_ranks import launch
from framework.train.watching import RankWatch, late_rank, late_steps
from tests.fakes import make_trainer, span
from tests.parallel.launching import ENVIRONMENT

STEP_S = 0.1


def times(delays_s, span="forward", explained=True):
    """Return own work and exchanges of steps of 0.1 s, in which each rank is late by ``delays_s``.

    If ``explained``, the rank spends the delay [ranks, steps] with own work in ``span``.
    """
    delays_s = np.asarray(delays_s, dtype=float)
    own_s = np.full((*delays_s.shape, len(SPANS)), 0.01)
    if explained:
        own_s[:, :, SPANS.index(span)] += delays_s
    return own_s, STEP_S - own_s.sum(axis=2)


def delayed(num_ranks, rank, late_s=0.03, num_steps=40, share=1.0):
    delays_s = np.zeros((num_ranks, num_steps))
    delays_s[rank, : int(share * num_steps)] = late_s
    return delays_s


def late_of(delays_s, **options):
    return late_rank(late_steps(*times(delays_s, **options)), len(delays_s))


@pytest.mark.parametrize("span", SPANS)
def test_the_slow_rank_and_its_span_are_named(span):
    late = late_of(delayed(3, 1), span=span)
    assert (late.rank, late.span, late.steps_share) == (1, span, 1.0)
    assert (late.late_s, late.lost_share) == (pytest.approx(0.03), pytest.approx(0.3))


def test_a_rank_that_is_late_in_some_steps_is_named_with_their_share():
    words = (
        "rank 3 is late in 70 % of the steps, in `forward`, by 50 ms; "
        "the others lost 35 % of the run"
    )
    assert late_of(delayed(4, 3, 0.05, share=0.7)).words == words


BY_TURNS = np.zeros((2, 40))
BY_TURNS[np.arange(40) % 2, np.arange(40)] = 0.03


@pytest.mark.parametrize(
    ("delays_s", "options"),
    [
        pytest.param(np.zeros((3, 40)), {}, id="nobody is late"),
        pytest.param(BY_TURNS, {}, id="ranks are late by turns"),
        pytest.param(delayed(2, 1, 0.05, num_steps=4), {}, id="a few steps prove nothing"),
        # it waited inside an exchange, or was released late by it
        pytest.param(delayed(2, 1), {"explained": False}, id="without more work of its own"),
    ],
)
def test_nobody_is_named_without_proof(delays_s, options):
    assert late_of(delays_s, **options) is None


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.integers(2, 8))
def test_chance_rarely_names_a_rank(seed, num_ranks):
    random = np.random.default_rng(seed)
    delays = [random.exponential(0.02, (num_ranks, 200)) for _ in range(10)]
    assert sum(late_of(delays_s) is not None for delays_s in delays) <= 1


class Two:
    """Two ranks that measure the same."""

    rank, world_size = 0, 2

    def gather(self, values):
        return [values, values]


class Fixed(HostClock):
    """A clock with rows of its own."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def own_work(self):
        return self.rows


ROWS = [(float(number), 0.1, *[0.05] * 6) for number in range(20)]


def test_ranks_that_are_alike_have_the_same_spans_and_are_not_late():
    watch = RankWatch(Fixed(ROWS), Two())
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


def test_one_rank_or_another_clock_measures_nothing():
    trainer = make_trainer(clock=HostClock(of_rank=True))
    trainer.fit()
    assert trainer.ranks.whole is None
    assert RankWatch(NoClock(), Two()).take({"forward": span(1.0)}) is None


PLACES = {"data": "wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def reported(folder, kind, cases, count):
    """Run the cases on ``count`` ranks, and return what each rank reports of each case."""
    words = [kind, ",".join(cases), str(folder)]
    assert launch(count, "tests.train.late_program", words, ENVIRONMENT) == 0
    texts = [(folder / f"{rank}.json").read_text() for rank in range(count)]
    return [dict(zip(cases, json.loads(text), strict=True)) for text in texts]


def named(report):
    return report["late"] and (report["late"]["rank"], report["late"]["span"])


def test_a_delay_of_one_of_two_ranks_is_found_in_its_place(tmp_path):
    cases = {f"none:{place}:1": (1, name) for place, name in PLACES.items()}
    cases["sync:forward:1"] = (1, "forward")
    first, second = reported(tmp_path, "ddp", list(cases), 2)
    assert {case: named(report) for case, report in first.items()} == cases
    spans = first["none:forward:1"]["spans"]
    assert list(spans) == [name for name in ALL_SPANS if name != "copy"]
    assert spans["forward"]["rank"] == 1
    assert spans["forward"]["max_s"] > 0.08 > spans["forward"]["min_s"]
    assert spans["exchange"]["rank"] == 0
    assert first["none:data:1"]["reports"] == [2] * 4
    assert second["none:data:1"]["reports"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "cases"),
    [
        pytest.param("ddp", 4, {"none:data:2": (2, "wait")}, id="ddp"),
        pytest.param("fsdp", 3, {"sync:backward:1": (1, "backward")}, id="fsdp"),
        pytest.param("virtual", 2, {"none:forward:1": (1, "forward")}, id="virtual"),
    ],
)
def test_a_delay_is_found_among_more_ranks_and_in_every_parallel(tmp_path, kind, count, cases):
    first = reported(tmp_path, kind, list(cases), count)[0]
    assert {case: named(report) for case, report in first.items()} == cases
