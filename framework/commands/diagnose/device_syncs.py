"""Where the user's model, objective or augment makes the host wait for the device: by file and line, from one training step.

On CUDA by torch's sync debug mode, which sees every such wait. On a CPU nothing waits; there the calls are watched that would wait on a
GPU. Calls from torch's own code and from ours are left out.
"""

import inspect
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import framework
from framework.commands.probe import Probe
from framework.config.training_parts import training_parts
from framework.contracts.batch import move

OURS = str(Path(framework.__file__).parent) + os.sep
TORCH = str(Path(torch.__file__).parent) + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib")})
WATCHERS = {"__torch_function__", "<lambda>", "_note"}  # functions of this file that look on
READS = {
    "item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__",
    "unique", "masked_select", "equal", "allclose", "is_nonzero", "__contains__", "__repr__", "__format__",
}  # fmt: skip


@dataclass(frozen=True)
class Sync:
    """``call``: what waits; ``count``: times in one step."""

    file: str
    line: int
    call: str
    count: int
    text: str


def find_syncs(probe: Probe) -> list[Sync]:
    """Those of one step, the most frequent first; after a step that is not watched, in which things are made that are made once."""
    step = _step_of(probe)
    step()
    found: Counter[tuple[str, int, str]] = Counter()
    with _watched(probe.assembly.device, found):
        step()
    return [
        Sync(file, line, call, count, _line(file, line))
        for (file, line, call), count in found.most_common()
    ]


def _step_of(probe: Probe) -> Callable[[], None]:
    """Augment, forward, backward, step: what of a run the user's parts are called in."""
    assembly = probe.assembly
    parts = training_parts(assembly)
    batches = assembly.train_source.batches(0)
    host = next(batches).batch
    batches.close()
    augment = assembly.augmenter(training=True)

    def step() -> None:
        batch = augment(move(host, assembly.device), 0)
        with parts.precision.autocast():
            outcome = parts.objective(parts.model, batch)
        parts.precision.backward(outcome.loss)
        parts.precision.step(parts.optimizer, None)
        parts.optimizer.zero_grad(set_to_none=True)

    return step


@contextmanager
def _watched(
    device: torch.device, found: Counter[tuple[str, int, str]]
) -> Generator[None, None, None]:
    if device.type != "cuda":
        with _Reads(found):
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: (
            _note(found, "waits for the device")
            if "called a synchronizing" in str(message)
            else None
        )
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _Reads(TorchFunctionMode):
    """Notes calls whose result the host must have before it goes on."""

    def __init__(self, found: Counter[tuple[str, int, str]]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS or _by_mask(name, args) or _to_host(name, args, kwargs or {}):
            _note(
                self.found,
                {"__getitem__": "index by a mask", "to": "to('cpu')"}.get(
                    name, name.strip("_") + "()"
                ),
            )
        return func(*args, **(kwargs or {}))


def _by_mask(name: str, args: Any) -> bool:
    """``x[mask]`` and ``torch.where(mask)``: how many there are decides the result's shape."""
    if name == "where":
        return len(args) == 1
    if name != "__getitem__":
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(
        isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in index
    )


def _to_host(name: str, args: Any, kwargs: Any) -> bool:
    return name == "to" and any(
        str(value) == "cpu"
        for value in (*args[1:], *kwargs.values())
        if isinstance(value, str | torch.device)
    )


def _note(found: Counter[tuple[str, int, str]], call: str) -> None:
    place = culprit(inspect.currentframe())
    if place is not None:
        found[(*place, call)] += 1


def culprit(frame: FrameType | None) -> tuple[str, int] | None:
    """(file, line) of the nearest code that is neither torch's nor ours; a library's only where no code of the user's called it. None: it is
    our own doing.
    """
    library: tuple[str, int] | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            if file != __file__ or frame.f_code.co_name not in WATCHERS:
                return library
        elif not file.startswith((TORCH, "<")):
            if not file.startswith(LIBRARIES):
                return file, frame.f_lineno
            library = library or (file, frame.f_lineno)
        frame = frame.f_back
    return library


def _line(file: str, number: int) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number - 1].strip() if number <= len(lines) else ""
