from contextlib import closing
from types import SimpleNamespace

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.diagnose import measure_run
from framework.commands.diagnose.measure_parts import Setting
from framework.commands.diagnose.measure_run import StepTimer, run_rate
from framework.config.training_parts import training_parts
from framework.train.trainer import Trainer
from tests.conftest import make_records, write_store

SLOW = """
import time


class Sink:
    def __init__(self, *, run):
        pass
    def write(self, report):
        time.sleep(0.02)
    def flush(self):
        pass
    def close(self):
        pass
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function of words that makes a run's setting.

    The run has a slow sink and validation data.
    """
    (tmp_path / "slowsink.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    train = write_store(str(tmp_path / "a.h5"), make_records(64))
    val = write_store(str(tmp_path / "b.h5"), make_records(24))

    def made(*words):
        known = [
            *("model.width=4", "batch_size=8", f"data.train={train}"),
            *(f"data.val={val}", "+sink.slow._target_=slowsink.Sink", "allow_targets=[slowsink]"),
        ]
        return Setting(*composed([*known, *words], Grant(frozenset({"allow_targets"}), "")))

    return made


def measured(setting):
    with closing(setting.probe()) as probe:
        return measure_run.measure_run(probe, 0.5)


def test_each_habit_of_a_run_has_a_cost_and_an_interval(run, capsys):
    known = measured(run("report_every=3", "checkpoint.every_steps=5"))
    assert known.report_every == 3
    assert known.report_s["slow"] >= 0.02 > known.report_s["jsonl"] > 0
    assert known.validate_s >= 0.02  # its report is written, too
    assert known.save_s > 0
    assert known.epoch_steps == known.validate_every == 8
    assert known.save_every["checkpoint.every_steps"] == 5
    assert "".join(capsys.readouterr()).count("step") == 0


def test_the_sinks_of_services_are_left_out(run):
    known = measured(run("sink=[jsonl,mlflow]"))
    assert known.report_s.keys() == {"jsonl", "slow"}


def test_a_run_that_reports_at_every_step_is_as_slow_as_its_sink(run):
    setting = run("report_every=1", "data.val=null")
    rate = run_rate(setting.config, setting.allowed, 0.5)
    assert rate < 8 / 0.02


def test_the_first_steps_do_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(measure_run.time, "perf_counter", lambda: now[0])
    timer, started = StepTimer(1.0, 10, 20), []
    timer.at_start.append(lambda: started.append(now[0]))
    num_steps = 0
    ends = False
    while not ends:
        now[0] += 10.0 if num_steps < 10 else 0.01
        num_steps += 1
        ends = timer()
    assert started == [100.0 + 10.0 * 10]
    assert num_steps == 10 + 101
    assert timer.step_s == pytest.approx(0.01)


def test_saving_a_state_is_timed_without_the_weights(run, monkeypatch):
    saved = []

    class SlowCheckpoints:
        """Checkpoints that take 20 ms for a state, and 50 ms more for weights."""

        now_s = 0.0

        def save(self, step, state, weights, best, final):
            self.now_s += 0.02 if weights is None else 0.07
            saved.append(step)

    slow = SlowCheckpoints()
    clock = SimpleNamespace(perf_counter=lambda: slow.now_s)
    with closing(run("data.val=null").probe()) as probe:
        trainer = Trainer(training_parts(probe.assembly))
        monkeypatch.setattr(measure_run, "time", clock)
        assert measure_run.saves_s(trainer, slow) == pytest.approx((0.02, 0.05))
    assert saved == [*range(9)]  # no file is replaced, as in a run
