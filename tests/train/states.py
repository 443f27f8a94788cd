"""Compare what trainers have learned."""

import random
from contextlib import contextmanager

import torch


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.parts.model.parameters()]


def average(trainer):
    return list(trainer.stepper.average.state_dict().values())


def same(left, right):
    """Return whether two nested states are equal bit by bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def saved_at(checkpoints, step):
    """Return the state that ``FakeCheckpoints`` have of a step."""
    return next(state for state, _, _ in checkpoints.saved if state["progress"]["step"] == step)


def means(sink, split="train"):
    return [report.means for report in sink.of(split)]


@contextmanager
def same_numbers_afterwards():
    """Check that the random generators are after the block as they were before it."""
    before = torch.get_rng_state(), random.getstate()
    yield
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
