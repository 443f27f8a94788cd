"""Contracts for loaders and the clock: when a batch is on the device, and where the time goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from framework.contracts.batch import Batch
from framework.contracts.data import MicroBatches, Source
from framework.contracts.span import Span


class Clock(Protocol):
    """Where the time goes. The time between two marks belongs to the second one's name, so nothing is left over."""

    def mark(self, name: str) -> None:
        """What ran since the last mark was ``name``; ``report`` ends a step. Never synchronizes."""
        ...

    def skip(self) -> None:
        """What ran since the last mark is not counted."""
        ...

    def spans(self) -> dict[str, Span]:
        """By name, how long the steps since the last call took; one under way counts as far as it is known. A device's clock may hand
        in the newest steps one call later, and tells ``idle``, the device's, from ``wait``, the host's. {} where the clock is off.
        """
        ...

    def lap(self) -> dict[str, float]:
        """The total seconds of ``spans``; what one has handed out, the other does not."""
        ...


@dataclass(frozen=True)
class LoaderContext:
    """What a Loader is given at runtime. ``augment(batch, epoch)`` finishes a batch on the device."""

    source: Source
    device: torch.device
    augment: Callable[[Batch, int], Batch]
    clock: Clock


class LoaderStats(NamedTuple):
    """Of the time since it was asked last. ``stages_s``: the source's ``stages``. ``ready``: host batches that lay ready when the next one
    was asked for, on average; None where none was asked for, or there is no queue. ``depth``: the most that may lie there; 0 without a queue.
    """

    stages_s: Mapping[str, float]
    ready: float | None
    depth: int


class Loader(Protocol):
    """Device batches in the source's order, safe on the current stream. Never changes what is learned, only when it is there."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        ...

    @property
    def identity(self) -> dict[str, int]:
        """What decides which records a step of an epoch holds; a run resumed inside an epoch must have the same."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of this choice on this machine; said once."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        """Steps ``start``.. of an epoch. Marks ``wait`` and ``copy``. Errors of the source surface here; an early close cleans up."""
        ...

    def stats(self) -> LoaderStats:
        """How preparing batches went since this was asked last; for the thread that takes them."""
        ...

    def close(self) -> None: ...
