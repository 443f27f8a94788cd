"""Time a training step without the user's objective, or its end without the model.

Beside long Python, OpenMP's threads fall asleep in every step, and each of the parts that follow
waits until they are awake. So the rest of a step is faster without such Python than beside it, by
an amount that depends on the processor. It is measured here.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from framework.commands.probe import Probe
from framework.contracts.batch import Batch
from framework.contracts.training import Objective
from framework.measure.statistics import median
from framework.train.parts import Parts
from framework.train.step import drop_gradients

LEAST_STEPS = 3


def step_without_objective(probe: Probe, parts: Parts, seconds: float) -> float | None:
    """Return the median seconds of a step in which the model is called as the objective calls it.

    The loss is the mean of all that the model returns. Nothing is copied or augmented.

    Args:
        probe: Its device must be a CPU, since OpenMP's threads are what is measured.
        parts: The model, objective, optimizer and precision. The model is trained.
        seconds: How long to repeat the step. There are at least ``LEAST_STEPS``.

    Returns:
        None if the objective does not call the model just once, or if the model is compiled or
        returns nothing that has a gradient.
    """
    if probe.config["compile"]:  # a hook would be compiled
        return None
    call = _only_call(parts.model, parts.objective, probe.batch())
    if call is None:
        return None

    def step() -> bool:
        with parts.precision.autocast():
            loss = _mean(parts.model(*call.arguments, **call.keywords))
        if loss is None:
            return False
        parts.precision.backward(loss)
        parts.precision.step(parts.optimizer, None)
        drop_gradients(parts.optimizer)
        return True

    if not step():
        return None
    return _median_s(step, seconds)


def update_alone_s(probe: Probe, parts: Parts, seconds: float) -> float | None:
    """Return the seconds of a backward pass and an update of the weights, each repeated.

    No forward pass is between them. Medians, for half of ``seconds`` each.

    Args:
        probe: Its device must be a CPU, since OpenMP's threads are what is measured.
        parts: The model, objective, optimizer and precision. The model is trained.
        seconds: How long to repeat both. There are at least ``LEAST_STEPS`` of each.

    Returns:
        None if the backward pass cannot be repeated.
    """
    with parts.precision.autocast():
        loss = parts.objective(parts.model, probe.batch()).loss

    def backward() -> None:
        drop_gradients(parts.optimizer)
        loss.backward(retain_graph=True)

    try:
        backward()
        backward()
    except RuntimeError:  # it changes or frees what it needs
        return None
    backward_s = _median_s(backward, seconds / 2)
    update_s = _median_s(lambda: parts.precision.step(parts.optimizer, None), seconds / 2)
    drop_gradients(parts.optimizer)
    return backward_s + update_s


class _Call(NamedTuple):
    """The arguments of a call of the model."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def _only_call(model: nn.Module, objective: Objective, batch: Batch) -> _Call | None:
    """Return how ``objective`` calls ``model``, or None if it does not do so exactly once."""
    calls: list[_Call] = []

    def keep(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.append(_Call(arguments, keywords))

    handle = model.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        objective(model, batch)
    finally:
        handle.remove()
    return calls[0] if len(calls) == 1 else None


def _mean(outputs: object) -> Tensor | None:
    """Return the sum of the means of all tensors with a gradient, or None if there is none."""
    means = [
        leaf.float().mean()
        for leaf in tree_leaves(outputs)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return sum(means[1:], means[0]) if means else None


def _median_s(step: Callable[[], object], seconds: float) -> float:
    """Repeat a step for so long. Return the median seconds of one."""
    times: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end or len(times) < LEAST_STEPS:
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return median(times)
