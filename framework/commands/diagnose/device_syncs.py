"""Find the calls in the user's model, objective and augment that make the host wait for the device.

On CUDA, torch's sync debug mode reports every wait of a training step. On a CPU nothing waits, so
calls are watched that would wait on a GPU. Calls inside torch and Paceline are left out.
"""

import inspect
import linecache
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from framework.config.training_parts import training_parts
from framework.contracts.batch import move
from framework.measure.stack_sampler import charged
from framework.train.step import drop_gradients
from framework.trials.probe import Probe

# Functions of this file that watch a call and are not its culprit.
WATCHERS = {"__torch_function__", "note_wait", "_note"}
READS = {
    "item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "equal", "allclose",
    "is_nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__",
    "__repr__", "__format__",
}  # fmt: skip


@dataclass(frozen=True)
class Sync:
    """A call that waits for the device."""

    file: str
    line: int
    call: str
    count: int  # calls in one step
    text: str  # the line of code


def measure_syncs(probe: Probe, _: float, say: Callable[[str], None]) -> tuple[Sync, ...]:
    """Return the waiting calls of one step, which takes no more than that step."""
    say("calls that wait for the device")
    return tuple(find_syncs(probe))


def find_syncs(probe: Probe) -> list[Sync]:
    """Return the waiting calls of one step, the most frequent first."""
    step = _step_of(probe)
    step()  # the first step also makes what is made once
    calls: Counter[tuple[str, int, str]] = Counter()
    with _watched(probe.assembly.device, calls):
        step()
    return [
        Sync(file, line, call, count, linecache.getline(file, line).strip())
        for (file, line, call), count in calls.most_common()
    ]


def culprit(frame: FrameType | None) -> tuple[str, int] | None:
    """Return (file, line) of the code to blame for the call in ``frame``; None if it is our own."""
    while frame is not None and _watches(frame):
        frame = frame.f_back
    place = charged(frame)
    return place and (place.file, place.line)


def _watches(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__ and frame.f_code.co_name in WATCHERS


def _step_of(probe: Probe) -> Callable[[], None]:
    """Return a function that calls the user's parts as one training step does."""
    assembly = probe.assembly
    parts = training_parts(assembly)
    host = probe.host_batch()
    augment = assembly.augmenter(training=True)

    def step() -> None:
        batch = augment(move(host, assembly.device), 0)
        with parts.precision.autocast():
            outcome = parts.objective(parts.model, batch)
        parts.precision.backward(outcome.loss)
        parts.precision.step(parts.optimizer, None)
        drop_gradients(parts.optimizer)

    return step


@contextmanager
def _watched(device: torch.device, calls: Counter[tuple[str, int, str]]) -> Generator[None]:
    if device.type != "cuda":
        with _Reads(calls):
            yield
        return

    def note_wait(message: Warning | str, *_: object, **__: object) -> None:
        if "called a synchronizing" in str(message):
            _note(calls, "waits for the device")

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note_wait
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _Reads(TorchFunctionMode):
    """Notes the calls whose result the host needs before it can continue."""

    def __init__(self, calls: Counter[tuple[str, int, str]]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in READS or _by_mask(name, args):
            _note(self.calls, {"__getitem__": "index by a mask"}.get(name, name.strip("_") + "()"))
        elif name == "to" and "cpu" in map(str, (*args[1:], *kwargs.values())):
            _note(self.calls, "to('cpu')")
        return func(*args, **kwargs)


def _by_mask(name: str, args: Any) -> bool:
    """Return whether the number of true elements of a mask decides the shape of the result."""
    if name == "where":
        return len(args) == 1
    if name != "__getitem__":
        return False
    index = args[1]
    if not isinstance(index, tuple):
        index = (index,)
    masks = [part for part in index if isinstance(part, Tensor)]
    return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)


def _note(calls: Counter[tuple[str, int, str]], call: str) -> None:
    place = culprit(inspect.currentframe())
    if place is not None:
        calls[(*place, call)] += 1
