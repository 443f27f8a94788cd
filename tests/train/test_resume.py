"""Runs that continue from a saved state end in the same bits as undisturbed ones."""

import pytest
import torch

from framework.schedule.one_cycle import OneCycle
from tests import fakes
from tests.train.states import means, same, saved_at, weights


def long_run(state=None, **parts):
    """Train three epochs with all that has a state: dropout, momentum, average, schedule."""
    plan = {"epochs": 3, "ema": 0.9, "schedule": OneCycle(0.3, 0.1), "report_every": 3}
    order = {"shuffle": True, "accumulate": 2}
    val = fakes.FakeLoader(fakes.make_data(6), 4)
    parts = {"checkpoints": fakes.FakeCheckpoints(), "val": val, **parts}
    model = fakes.make_model(dropout=0.3)
    trainer = fakes.make_trainer(fakes.make_data(18), 4, model=model, order=order, **plan, **parts)
    if state is not None:
        trainer.load_state_dict(state)
    trainer.fit()
    return trainer


def last_state(trainer):
    """Return the last saved state without the time that training took."""
    return {**trainer.parts.checkpoints.saved[-1][0], "trained_s": 0.0}


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_run_stopped_within_an_epoch_ends_in_the_same_bits(steps):
    undisturbed, sink = fakes.FakeSink(), fakes.FakeSink()
    whole = long_run(sinks=[undisturbed])
    first = long_run(sinks=[sink], stop=fakes.stop_after(steps))
    second = long_run(last_state(first), sinks=[sink])
    assert same(last_state(second), last_state(whole))
    assert means(sink) == means(undisturbed)


def test_a_run_resumed_from_the_end_of_an_epoch_ends_in_the_same_bits():
    whole = long_run()
    state = saved_at(whole.parts.checkpoints, 5)
    second = long_run(state)
    assert second.pace.before_s == state["trained_s"] > 0
    assert second.parts.train.started[0] == (1, 0)
    assert same(last_state(second), last_state(whole))


class Slowing(torch.optim.SGD):
    """An optimizer that counts its steps in its groups, as Prodigy does."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.defaults["count"] = 0
        for group in self.param_groups:
            group["count"] = 0

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"]:
                weight.grad /= group["count"]
        super().step()


def test_what_an_optimizer_keeps_in_its_groups_continues():
    def trained(epochs, state=None):
        model = fakes.make_model()
        parts = {"model": model, "optimizer": Slowing(model.parameters()), "epochs": epochs}
        trainer = fakes.make_trainer(fakes.make_data(8), 4, **parts)
        if state is not None:
            trainer.load_state_dict(state)
        trainer.fit()
        return trainer

    assert same(weights(trained(3, trained(1).state_dict())), weights(trained(3)))


def test_an_epoch_whose_last_batch_is_left_out_on_resume_ends():
    data, sink = fakes.make_data(10), fakes.FakeSink()
    first = fakes.make_trainer(data, 4, epochs=2, max_steps=2)
    first.fit()
    val = fakes.FakeLoader(fakes.make_data(6), 4)
    dropped = {"order": {"last": "drop"}, "val": val, "epochs": 2, "report_every": 1}
    second = fakes.make_trainer(data, 4, sinks=[sink], **dropped)
    second.load_state_dict(first.state_dict())
    second.fit()
    assert [report.step for report in sink.of("val")] == [4]
    assert [(report.step, report.epoch) for report in sink.of("train")] == [(3, 2), (4, 2)]


@pytest.mark.parametrize(
    ("batch_size", "reports"),
    [(8, [(9, 3), (10, 3), (11, 4), (12, 4)]), (2, [(n, 3 + (n > 16)) for n in range(9, 25)])],
)
def test_a_run_with_another_batch_size_trains_the_epochs_that_are_left(batch_size, reports):
    first = fakes.make_trainer(fakes.make_data(16), 4, epochs=2)
    first.fit()
    sink = fakes.FakeSink()
    plan = {"epochs": 4, "report_every": 1}
    second = fakes.make_trainer(fakes.make_data(16), batch_size, sinks=[sink], **plan)
    second.load_state_dict(first.state_dict())
    second.fit()
    assert [(report.step, report.epoch) for report in sink.reports] == reports
    assert second.progress.step == second.total_steps
