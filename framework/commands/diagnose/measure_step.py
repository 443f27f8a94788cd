"""Measure what the user's own code does in a step: its Python, and its calls that wait.

Each part of a step is timed, and its stack is sampled in further steps, since sampling makes a step
slower. What a line spends in long operators of torch is no Python, and is subtracted: a few steps
are watched for them.
"""

import inspect
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import perf_counter, thread_time
from types import CodeType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from framework.config.training_parts import training_parts
from framework.contracts.batch import move
from framework.data.dataset import DatasetSource
from framework.data.requests import Request
from framework.data.source import StoreSource
from framework.diagnosis.code_lines import WaitingCalls, largest_lines
from framework.diagnosis.facts import HostPython, PythonLine, Sync
from framework.measure.stack_sampler import LAYERS, StackSampler, charged
from framework.measure.statistics import median
from framework.train.parts import Parts
from framework.train.step import drop_gradients
from framework.trials.probe import Probe

SHARE = 0.06  # of the given seconds, for a step and for preparing each
MOST_WATCHED = 3  # steps that are watched for long operators
SLICE = 8  # records prepared at a time
MOST_LINES = 5  # of each part
# A line with a smaller share is left out.
LEAST_LINE = 0.02
# A shorter call of torch costs the host more than the operator computes.
LONG_S = 1e-4
PARTS = ("augment", "objective", "model")


def measure_syncs(probe: Probe) -> tuple[Sync, ...]:
    """Return the waiting calls of one step, the most frequent first.

    On CUDA, torch's sync debug mode reports every wait. On a CPU nothing waits, so calls are
    watched that would wait on a GPU.
    """
    calls = WaitingCalls()
    with _user_step(probe, training_parts(probe.assembly), lambda _: None) as step:
        step()  # the first step also makes what is made once
        if probe.assembly.device.type != "cuda":
            calls.start()
            try:
                step()
            finally:
                calls.stop()
            return tuple(calls.noted())

        def note_wait(message: Warning | str, *_: object, **__: object) -> None:
            frame = inspect.currentframe()
            if "called a synchronizing" in str(message):
                calls.note("waits for the device", frame and frame.f_back)

        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note_wait
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode(before)
    return tuple(calls.noted())


def measure_python(probe: Probe, seconds: float) -> HostPython:
    """Sample steps and the preparing of records, ``SHARE`` of ``seconds`` each."""
    shares, lines = _python_of_step(probe, SHARE * seconds)
    transform, more = _python_of_transform(probe, SHARE * seconds)
    lines = sorted((*lines, *more), key=lambda line: -line.share)
    return HostPython(shares, transform, tuple(lines))


def _python_of_step(probe: Probe, seconds: float) -> tuple[dict[str, float], list[PythonLine]]:
    """Return the share of a step of each part's Python, and its lines."""
    sampler = StackSampler()
    times = _PartTimes(sampler)
    parts = training_parts(probe.assembly)
    with _user_step(probe, parts, times.switch) as step:
        step()  # the first step also makes what is made once
        times.take()
        _repeat(step, seconds / 2)
        plain_s = times.take()
        sampler.start()
        num_steps = _repeat(step, seconds / 2)
        sampler.stop()
        sampled_s = times.take()
        num_watched = min(num_steps, MOST_WATCHED)
        on_cpu = probe.assembly.device.type == "cpu"
        with _LongOperators(sampler, on_cpu) as watched:
            for _ in range(num_watched):
                step()
        long_s = watched.seconds
    step_s = sum(plain_s.values())
    shares: dict[str, float] = {}
    for part in PARTS:
        python_s = sum(line.python_s for line in sampler.lines() if line.label == part)
        python_s -= num_steps / num_watched * long_s[part]
        python = python_s / max(sampled_s[part], 1e-9)
        shares[part] = min(max(python, 0.0), 1.0) * plain_s[part] / step_s
    shown = [part for part in PARTS if shares[part] > LEAST_LINE]
    lines = [
        line for part in shown for line in largest_lines(sampler, part, MOST_LINES, LEAST_LINE)
    ]
    return shares, lines


def _python_of_transform(probe: Probe, seconds: float) -> tuple[float, list[PythonLine]]:
    """Return the share of the user's Python in preparing a record, and its lines."""
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource | DatasetSource):
        return 0.0, []
    sampler = StackSampler()
    sampler.label = "transform"
    indices = next(iter(source.order.shares(0))).indices
    source.read(Request(0, indices[:1], training=True))  # opens files
    slices = indices.split(SLICE)
    sampler.start()
    start = perf_counter()
    number = 0
    while perf_counter() - start < seconds:
        source.read(Request(0, slices[number % len(slices)], training=True))
        number += 1
    sampler.stop()
    share = sum(line.python_s for line in sampler.lines()) / sampler.total_s
    return share, largest_lines(sampler, "transform", MOST_LINES, LEAST_LINE)


def _repeat(step: Callable[[], None], seconds: float) -> int:
    """Repeat a step for so long. Return how often."""
    end = perf_counter() + seconds
    num_steps = 0
    while perf_counter() < end or not num_steps:
        step()
        num_steps += 1
    return num_steps


@contextmanager
def _user_step(
    probe: Probe, parts: Parts, switch: Callable[[str], None]
) -> Generator[Callable[[], None]]:
    """Yield a function that runs the user's parts as a training step does.

    It calls ``switch`` with the name of each part. Hooks tell the model from the objective that
    calls it.
    """
    assembly = probe.assembly
    host = probe.host_batch()
    augment = assembly.augmenter(training=True)

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
    handles: list[Any] = []
    if not probe.config["compile"]:  # a compiled model has no Python, and would compile the hooks
        handles.append(model.register_forward_pre_hook(lambda *_: switch("model")))
        handles.append(model.register_forward_hook(lambda *_: switch("objective")))
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

    def take(self) -> defaultdict[str, float]:
        """Return the seconds of each part since the last call."""
        self.switch(self._sampler.label)
        seconds = self._seconds
        self._seconds = defaultdict(float)
        return seconds


class _LongOperators(TorchFunctionMode):
    """Times operators of torch that a sampler counts as Python of the user, by their place.

    On a CPU, the calling thread takes part in every operator: one that keeps it hardly busy was
    interrupted by other programs. A sampler counts the interruption, too.
    """

    def __init__(self, sampler: StackSampler, on_cpu: bool) -> None:
        super().__init__()
        self._sampler = sampler
        self._on_cpu = on_cpu
        # (seconds that passed, seconds that the thread computed) of each call
        self._calls: defaultdict[tuple[str, CodeType, int, str], list[tuple[float, float]]]
        self._calls = defaultdict(list)

    @property
    def seconds(self) -> defaultdict[str, float]:
        """Seconds of the long operators, by the label of what ran.

        An operator is long if most of its calls in the same place are: any call may be interrupted.
        """
        seconds: defaultdict[str, float] = defaultdict(float)
        for (label, *_), calls in self._calls.items():
            if median([busy_s for _, busy_s in calls]) > LONG_S:
                seconds[label] += math.fsum(passed_s for passed_s, _ in calls)
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
        # Layers are no Python of the user, nor is what we call, such as the backward pass.
        of_layers = str(getattr(func, "__module__", "")).startswith("torch.nn.")
        in_layers = caller.f_code.co_filename.startswith(LAYERS)
        if not of_layers and not in_layers and charged(caller) is not None:
            name = getattr(func, "__name__", "")
            key = (self._sampler.label, caller.f_code, caller.f_lineno, name)
            self._calls[key].append((passed_s, busy_s))
        return result
