"""Measure how much of a step the user's own Python takes: in the model, objective and augment.

Each part of a step is timed, and its stack is sampled in further steps, since sampling makes a step
slower. What a line spends in long operators of torch is no Python, and is subtracted: a few steps
are watched for them.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter, thread_time
from types import CodeType
from typing import Any, NamedTuple, final

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from framework.commands.diagnose.step_without import (
    LONG_S,
    is_python,
    operators_s,
    step_without_objective,
)
from framework.config.training_parts import training_parts
from framework.contracts.batch import move
from framework.data.dataset import DatasetSource
from framework.data.requests import Request
from framework.data.source import StoreSource
from framework.measure.stack_sampler import SampledLine, StackSampler
from framework.measure.statistics import median
from framework.train.parts import Parts
from framework.train.step import drop_gradients
from framework.trials.probe import Probe

SHARE = 0.06  # of the given seconds, for a step and for preparing each
# Python that takes a smaller share of a step, or of preparing a record, is no cause.
LEAST_SHARE = 0.15
MOST_WATCHED = 3  # steps that are watched for long operators
SLICE = 8  # records prepared at a time
MOST_LINES = 5  # of each part
# A line with a smaller share is left out.
LEAST_LINE = 0.02
PARTS = ("augment", "objective", "model")


@dataclass(frozen=True)
class PythonLine:
    """A line of the user's Python, and its share of the time of a step or of a record."""

    part: str  # model, objective, augment or transform
    file: str
    line: int
    function: str
    text: str
    share: float


@dataclass(frozen=True)
class HostPython:
    """Time that the user's own Python takes, without long operators of torch.

    Attributes:
        step: The shares of a step without waiting, in each of model, objective and augment.
        transform: The share of preparing a record; 0 if it was not measured.
        lines: The lines with the largest shares, the largest first.
        rest_s: Seconds of a step without copying, augmenting and the Python of a part, for the
            parts without which a step was timed: the model or the objective on a CPU, if it takes
            at least ``LEAST_SHARE``.
    """

    step: Mapping[str, float]
    transform: float = 0.0
    lines: tuple[PythonLine, ...] = ()
    rest_s: Mapping[str, float] = field(default_factory=dict[str, float])

    def of(self, part: str) -> list[PythonLine]:
        return [line for line in self.lines if line.part == part]


def measure_python(probe: Probe, seconds: float, say: Callable[[str], None]) -> HostPython:
    """Sample steps and the preparing of records, ``SHARE`` of ``seconds`` each."""
    say("lines of your Python")
    of_step = _of_step(probe, SHARE * seconds)
    transform, of_transform = _of_transform(probe, SHARE * seconds)
    lines = sorted((*of_step.lines, *of_transform), key=lambda line: -line.share)
    return replace(of_step, transform=transform, lines=tuple(lines))


def _of_step(probe: Probe, seconds: float) -> HostPython:
    """Return what is known of a step, and not of preparing records."""
    sampler = StackSampler()
    times = _PartTimes(sampler)
    parts = training_parts(probe.assembly)
    with _step_of(probe, parts, times.switch) as step:
        step()  # the first step also makes what is made once
        times.take()
        num_plain = _repeated(step, seconds / 2)
        plain_s = times.take()
        sampler.start()
        num_steps = _repeated(step, seconds / 2)
        sampler.stop()
        sampled_s = times.take()
        num_watched = min(num_steps, MOST_WATCHED)
        on_cpu = probe.assembly.device.type == "cpu"
        with _LongOperators(sampler, on_cpu) as watched:
            for _ in range(num_watched):
                step()
        long_s = watched.seconds
    lines = sampler.lines()
    step_s = sum(plain_s.values())
    shares: dict[str, float] = {}
    for part in PARTS:
        of_operators_s = num_steps / num_watched * long_s[part]
        python_s = sum(line.python_s for line in lines if line.label == part) - of_operators_s
        python = python_s / max(sampled_s[part], 1e-9)
        shares[part] = min(max(python, 0.0), 1.0) * plain_s[part] / step_s
    rest_s: dict[str, float] = {}
    if on_cpu:
        objective_s = plain_s["objective"] / num_plain
        python_s = shares["objective"] * step_s / num_plain
        for part, without, kept_s in (
            ("objective", step_without_objective, objective_s - python_s),
            ("model", operators_s, objective_s),
        ):
            if shares[part] >= LEAST_SHARE:
                without_s = without(probe, parts, seconds / 2)
                if without_s is not None:  # what the objective computes stays
                    rest_s[part] = without_s + kept_s
    shown = [part for part in PARTS if shares[part] > LEAST_LINE]
    largest = [line for part in shown for line in _largest(lines, part, sampler.total_s)]
    return HostPython(shares, lines=tuple(largest), rest_s=rest_s)


def _repeated(step: Callable[[], None], seconds: float) -> int:
    """Repeat a step for so long. Return how often."""
    start = perf_counter()
    num_steps = 0
    while perf_counter() - start < seconds or not num_steps:
        step()
        num_steps += 1
    return num_steps


def _of_transform(probe: Probe, seconds: float) -> tuple[float, list[PythonLine]]:
    """Return the share of the user's Python in preparing a record, and its lines."""
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource | DatasetSource):
        return 0.0, []
    sampler = StackSampler()
    sampler.label = "transform"
    indices = next(iter(source.order.shares(0))).indices
    source.read(Request(0, indices[:1], training=True))  # opens files
    sampler.start()
    _read_for(seconds, source, indices)
    sampler.stop()
    lines = sampler.lines()
    share = sum(line.python_s for line in lines) / sampler.total_s
    return share, _largest(lines, "transform", sampler.total_s)


def _read_for(seconds: float, source: StoreSource | DatasetSource, indices: Tensor) -> None:
    """Read records for so long, again and again."""
    start = perf_counter()
    while perf_counter() - start < seconds:
        for index in indices.split(SLICE):
            source.read(Request(0, index, training=True))
            if perf_counter() - start >= seconds:
                break


def _largest(lines: list[SampledLine], part: str, total_s: float) -> list[PythonLine]:
    """Return the lines of ``part`` with the largest shares of ``total_s``."""
    largest = [
        PythonLine(
            part,
            line.place.file,
            line.place.line,
            line.place.function,
            line.place.text,
            line.python_s / total_s,
        )
        for line in sorted(lines, key=lambda line: -line.python_s)
        if line.label == part and line.python_s > LEAST_LINE * total_s
    ]
    return largest[:MOST_LINES]


@contextmanager
def _step_of(
    probe: Probe, parts: Parts, switch: Callable[[str], None]
) -> Generator[Callable[[], None]]:
    """Yield a function that runs the user's parts as a training step does.

    It calls ``switch`` with the name of each part. Hooks tell the model from the objective that
    calls it.
    """
    assembly = probe.assembly
    host = probe.host_batch()
    augment = assembly.augmenter(training=True)

    def label(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            switch(name)

        return hook

    def step() -> None:
        switch("copy")
        batch = move(host, assembly.device)
        switch("augment")
        batch = augment(batch, 0)
        switch("objective")
        with parts.precision.autocast():
            outcome = parts.objective(parts.model, batch)
        switch("model")  # autograd functions of the user
        parts.precision.backward(outcome.loss)
        switch("optimizer")
        parts.precision.step(parts.optimizer, None)
        drop_gradients(parts.optimizer)

    model: nn.Module = parts.model
    handles: list[RemovableHandle] = []
    if not probe.config["compile"]:  # a compiled model has no Python, and would compile the hooks
        handles.append(model.register_forward_pre_hook(label("model")))
        handles.append(model.register_forward_hook(label("objective")))
    try:
        yield step
    finally:
        for handle in handles:
            handle.remove()


@final
class _PartTimes:
    """Times the parts of a step, and labels them for a sampler."""

    def __init__(self, sampler: StackSampler) -> None:
        self._sampler = sampler
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = perf_counter()

    def switch(self, part: str) -> None:
        """Begin a part."""
        now = perf_counter()
        self._seconds[self._sampler.label] += now - self._since
        self._sampler.label = part
        self._since = now

    def take(self) -> Mapping[str, float]:
        """Return the seconds of each part since the last call."""
        self.switch(self._sampler.label)
        seconds = self._seconds
        self._seconds = defaultdict(float)
        return seconds


class _Call(NamedTuple):
    """Seconds of a call of an operator.

    On a CPU, the calling thread takes part in every operator: one that keeps it hardly busy was
    interrupted by other programs. A sampler counts the interruption, too.
    """

    passed_s: float
    busy_s: float  # that the thread computed


class _LongOperators(TorchFunctionMode):
    """Times operators of torch that a sampler counts as Python of the user, by their place."""

    def __init__(self, sampler: StackSampler, on_cpu: bool) -> None:
        super().__init__()
        self._sampler = sampler
        self._on_cpu = on_cpu
        self._calls: defaultdict[tuple[str, CodeType, int, str], list[_Call]] = defaultdict(list)

    @property
    def seconds(self) -> defaultdict[str, float]:
        """Seconds of the long operators, by the label of what ran.

        An operator is long if most of its calls in the same place are: any call may be interrupted.
        """
        seconds: defaultdict[str, float] = defaultdict(float)
        for (label, *_), calls in self._calls.items():
            if median([call.busy_s for call in calls]) > LONG_S:
                seconds[label] += math.fsum(call.passed_s for call in calls)
        return seconds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = perf_counter()
        start_cpu = thread_time()
        result = func(*args, **(kwargs or {}))
        busy_s = thread_time() - start_cpu
        passed_s = perf_counter() - start
        if not self._on_cpu:
            busy_s = passed_s  # a wait for a GPU may take no CPU time
        elif func is Tensor.tolist:  # making Python numbers is work of Python
            return result
        caller = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
        if is_python(caller, func):
            name = getattr(func, "__name__", "")
            key = (self._sampler.label, caller.f_code, caller.f_lineno, name)
            self._calls[key].append(_Call(passed_s, busy_s))
        return result
