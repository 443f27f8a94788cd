"""Time a training step without the user's objective, or without the model's Python.

Beside long Python, OpenMP's threads fall asleep in every step, and each of the parts that follow
waits until they are awake. So the rest of a step is faster without such Python than beside it, by
an amount that depends on the processor. It is measured here.
"""

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from types import FrameType
from typing import Any, NamedTuple, final

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from framework.contracts.batch import Batch
from framework.contracts.training import Objective
from framework.measure.stack_sampler import LAYERS, charged
from framework.measure.statistics import median
from framework.train.parts import Parts
from framework.train.step import drop_gradients
from framework.trials.probe import Probe

LEAST_STEPS = 3
# A shorter call of torch costs the host more than the operator computes.
LONG_S = 1e-4


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


def operators_s(probe: Probe, parts: Parts, seconds: float) -> float | None:
    """Return the seconds of the model's operators, its backward pass and the update, repeated.

    They are repeated one by one, without the model's Python between them. Medians, for a third of
    ``seconds`` each. Of the operators that the model itself calls, those shorter than ``LONG_S``
    count as its Python.

    Args:
        probe: Its device must be a CPU, since OpenMP's threads are what is measured.
        parts: The model, objective, optimizer and precision. The model is trained.
        seconds: How long to repeat all. There are at least ``LEAST_STEPS`` of each.

    Returns:
        None if the objective does not call the model just once, if the model is compiled, or if
        something cannot be repeated.
    """
    if probe.config["compile"]:  # a hook would be compiled
        return None
    batch = probe.batch()
    call = _only_call(parts.model, parts.objective, batch)
    if call is None:
        return None
    operators = _Operators()
    with parts.precision.autocast():
        loss = parts.objective(parts.model, batch).loss
        with operators:
            parts.model(*call.arguments, **call.keywords)

    def forward() -> None:
        with parts.precision.autocast():
            for operator in operators.calls:
                operator()

    def backward() -> None:
        drop_gradients(parts.optimizer)
        loss.backward(retain_graph=True)

    def update() -> None:
        parts.precision.step(parts.optimizer, None)

    try:
        backward()
        total_s = sum(_median_s(part, seconds / 3) for part in (forward, backward, update))
    except RuntimeError:  # it changes or frees what it needs
        return None
    drop_gradients(parts.optimizer)
    return total_s


def is_python(caller: FrameType, func: Any) -> bool:
    """Return whether a sampler counts what ``func`` does as Python of the user.

    Layers are no Python of the user, nor is what we call, such as the backward pass.
    """
    of_layers = str(getattr(func, "__module__", "")).startswith("torch.nn.")
    file = caller.f_code.co_filename
    return not of_layers and not file.startswith(LAYERS) and charged(caller) is not None


@final
class _Operators(TorchFunctionMode):
    """Keeps the calls of torch that are no Python of the user."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        start = thread_time()
        result = call()
        is_long = thread_time() - start > LONG_S and func is not Tensor.tolist
        caller = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
        if is_long or not is_python(caller, func):
            self.calls.append(call)
        return result


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
