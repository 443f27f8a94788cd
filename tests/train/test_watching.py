"""Watchers and the pace of a run, and who makes whom wait."""

import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.contracts.span import ALL_SPANS, SPANS
from framework.contracts.training import Moment, Watcher
from framework.errors import ConfigError, UserCodeError
from framework.measure.clock import HostClock, NoClock
from framework.parallel import none, start_ranks
from framework.train import watching as module
from tests.fakes import CPU, FakeCheckpoints, FakeLoader, make_data, make_trainer, span
from tests.parallel.launching import ENVIRONMENT
from tests.train.states import same_numbers_afterwards

NOW = Moment(4, 1, 2.0)
F1 = module.Goal("f1", True, "stop.metric")


class Remembers(Watcher):
    """Remembers what it is given to remember, and returns what it is given to return."""

    def __init__(self, memory=None, reason=None):
        self.memory = {} if memory is None else memory
        self.reason = reason

    def after_report(self, moment):
        return self.reason

    def state_dict(self):
        return self.memory

    def load_state_dict(self, state):
        self.memory = state


def watching(rank=0, **watchers):
    parallel = none.NoParallel(device=CPU)
    parallel.rank = rank
    return module.Watching(watchers, parallel)


def test_the_first_reason_counts_and_is_kept_until_it_is_agreed_on():
    group = watching(a=Remembers(), b=Remembers(reason="it\nis late"), c=Remembers(reason="no"))
    assert (group.asks, group.agreed()) == (False, "")
    group.call(lambda own: own.after_report, NOW)
    assert (group.asks, group.agreed()) == (True, "it is late")
    resumed = watching(a=Remembers())
    resumed.load_state_dict(group.state_dict())
    assert (resumed.asks, resumed.agreed()) == (True, "it is late")


def test_numbers_that_a_watcher_draws_leave_the_generators_alone():
    class Draws(Watcher):
        def after_report(self, moment):
            return None if torch.rand(3).sum() + random.random() > -1 else "never"

    with same_numbers_afterwards():
        watching(a=Draws()).call(lambda own: own.after_report, NOW)


@pytest.mark.parametrize("reason", [True, 3])
def test_a_reason_that_is_no_text_is_refused(reason):
    with pytest.raises(ConfigError, match=r"C333\]: a\.after_report: returned a (bool|int)"):
        watching(a=Remembers(reason=reason)).call(lambda own: own.after_report, NOW)


@pytest.mark.parametrize(
    "memory", [pytest.param([1], id="no dict"), pytest.param({"x": [{"y": {1, 2}}]}, id="a set")]
)
def test_what_no_state_can_hold_is_refused_before_the_first_step(memory):
    with pytest.raises(ConfigError, match=r"C334\]: a\.state_dict"):
        watching(a=Remembers(memory))


def test_what_a_watcher_remembers_comes_back_by_its_name():
    memory = {"x": [1, 2.5, None, "y"], "t": torch.ones(2)}
    state = watching(a=Remembers(memory), b=Remembers()).state_dict()
    resumed, new = Remembers(), Remembers({"n": 1})
    watching(a=resumed, c=new).load_state_dict(state)
    assert resumed.memory["x"] == memory["x"]
    assert new.memory == {"n": 1}


def test_an_exception_names_the_user_s_line():
    class Fails(Watcher):
        def after_save(self, moment):
            raise RuntimeError("no network")

    with pytest.raises(UserCodeError, match=r"U100.*test_watching\.py:.*no network.*a\.after_save"):
        watching(a=Fails()).call(lambda own: own.after_save, NOW)


def validation(step, value, is_best=False):
    return Moment(step, 1, 0.0, metrics={"loss": 1.0, "f1": value}, is_best=is_best)


def reasons(watcher, values, first=1):
    moments = [validation(step, value) for step, value in enumerate(values, first)]
    return [watcher.after_validation(moment) for moment in moments]


@pytest.mark.parametrize("resumed_after", [0, 1, 4, 5])
def test_patience_ends_a_run_without_a_better_validation_even_if_it_resumes(resumed_after):
    values = [0.1, 0.5, 0.4, 0.6, 0.6, 0.2]
    first, second = module.EarlyStop(2, F1), module.EarlyStop(2, F1)
    given = reasons(first, values[:resumed_after])
    second.load_state_dict(first.state_dict())
    given += reasons(second, values[resumed_after:], resumed_after + 1)
    assert given == [None] * 5 + ["no better f1 in 2 validations (best: 0.6 after step 4)"]


def test_a_gain_of_no_more_than_min_delta_is_no_gain():
    stop = module.EarlyStop(2, F1, min_delta=0.25)
    ends = "no better f1 in 2 validations (best: 0.5 after step 2)"
    assert reasons(stop, [math.nan, 0.5, 0.75, 0.625]) == [None, None, None, ends]
    lower = module.EarlyStop(1, module.Goal("f1", False), min_delta=0.25)
    ends = "no better f1 in 1 validations (best: 0.5 after step 2)"
    assert reasons(lower, [1.0, 0.5, 0.25])[-1] == ends
    before_training = [0.5, 0.5, 0.25]
    ends = "no better f1 in 2 validations (best: 0.5 after step 0)"
    assert reasons(module.EarlyStop(2, F1), before_training, first=0) == [None, None, ends]
    with pytest.raises(ValueError, match=r"min_delta = 0\.1 needs a goal"):
        module.EarlyStop(2, min_delta=0.1)


def test_the_time_budget_ends_a_run_at_a_report_or_a_validation():
    budget = module.TimeBudget(90.0)
    for look in (budget.after_report, budget.after_validation):
        assert look(Moment(1, 1, 89.9)) is None
        assert look(Moment(2, 1, 90.0)) == "it has trained for 90 s (at most 90 s)"


def test_time_before_a_resume_counts_as_training_and_pauses_do_not(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    timer = module.TrainPace()
    timer.before_s = 7.0
    clock.now += 9  # building the run
    timer.start()
    clock.now += 2
    timer.pause()
    clock.now += 50
    assert timer.total_s == 9.0
    timer.resume()
    clock.now += 1
    assert timer.lap(6) == 2.0
    clock.now += 4
    assert (timer.total_s, timer.train_s, timer.num_records) == (14.0, 3.0, 6)


class Looks(Watcher):
    """Remembers the calls, and wants to stop at the call ``at``."""

    def __init__(self, at=None):
        self.at = at
        self.calls = []

    def _called(self, name, moment):
        self.calls.append((name, moment.step))
        self.newest = moment
        return "enough" if (name, moment.step) == self.at else None

    def after_report(self, moment):
        assert moment.report.step == moment.step
        return self._called("report", moment)

    def after_validation(self, moment):
        assert "accuracy" in moment.metrics
        return self._called("validation", moment)

    def after_save(self, moment):
        return self._called("save", moment)

    def at_end(self, moment):
        self._called("end", moment)


def watched(watcher, epochs=2, state=None, **parts):
    """Return a Trainer that has trained epochs of five steps, which the watcher has seen."""
    group = module.Watching({"watchers.0": watcher}, none.NoParallel(device=CPU))
    parts = {"checkpoints": FakeCheckpoints(), "watching": group, **parts}
    val = FakeLoader(make_data(6), 4)
    trainer = make_trainer(make_data(20), 4, epochs=epochs, val=val, report_every=2, **parts)
    if state is not None:
        trainer.load_state_dict(state)
    trainer.fit()
    return trainer


def state_of(trainer):
    return trainer.parts.checkpoints.saved[-1][0]


def test_a_watcher_sees_reports_validations_saves_and_the_end():
    looks = Looks()
    watched(looks, epochs=1)
    reports = [("report", 2), ("report", 4), ("report", 5)]
    assert looks.calls == [*reports, ("validation", 5), ("save", 5), ("end", 5)]
    assert (looks.newest.status, looks.newest.reason, looks.newest.epoch) == ("finished", "", 1)


def test_a_reason_after_a_report_ends_the_run_with_the_next_step_validated_and_saved():
    looks = Looks(at=("report", 2))
    trainer = watched(looks)
    assert (trainer.progress.step, trainer.ended, trainer.stopped) == (3, "enough", False)
    assert looks.calls[1:] == [("report", 3), ("validation", 3), ("save", 3), ("end", 3)]
    state, kept, best = trainer.parts.checkpoints.saved[-1]
    assert (state["ended"], kept is not None, best) == ("enough", True, True)
    assert trainer.parts.checkpoints.finals == [True]
    assert (looks.newest.status, looks.newest.reason) == ("finished", "enough")


def test_a_run_that_ended_early_takes_no_step_when_it_is_resumed():
    first = watched(Looks(at=("validation", 5)), epochs=3)
    assert (first.progress.step, first.ended) == (5, "enough")
    assert len(first.parts.checkpoints.saved) == 1
    second = watched(Looks(), epochs=3, state=state_of(first))
    assert (second.parts.train.started, second.ended) == ([], "enough")


STEP_S = 0.1


def times(delays_s, span="forward", explained=True):
    """Return work and exchanges of steps with ranks late by ``delays_s``, or with own work."""
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
    return module.late_rank(module.late_steps(*times(delays_s, **options)), len(delays_s))


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
    watch = module.RankWatch(Fixed(ROWS), Two())
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
    assert module.RankWatch(NoClock(), Two()).take({"forward": span(1.0)}) is None


PLACES = {"data": "wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def reported(folder, kind, cases, count):
    """Run the cases on ``count`` ranks, and return what each rank reports of each case."""
    words = [kind, ",".join(cases), str(folder)]
    assert start_ranks.launch(count, "tests.train.late_program", words, ENVIRONMENT) == 0
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
