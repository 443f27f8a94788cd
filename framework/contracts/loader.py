"""Contracts for loaders and the clock: when a batch is on the device, and where the time goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from framework.contracts import class_labels, span
from framework.contracts.batch import Batch
from framework.contracts.data import Content, MicroBatches, Source
from framework.contracts.waits import Waits
from framework.order.batches import GivesBatches


class Clock:
    """Measures where the time goes: the time between two marks belongs to the second."""

    def mark(self, name: str) -> None:
        """Count the time since the last mark, without synchronizing. ``report`` ends a step."""

    def skip(self) -> None:
        """Do not count the time since the last mark."""

    def spans(self) -> dict[str, span.Span]:
        """Return the spans, by name, of the steps since the last call.

        A step in progress counts as far as it is known. The clock of a device may deliver the
        newest steps one call later. It distinguishes ``idle`` (the device waits) from ``wait`` (the
        host waits). {} if the clock is off.
        """
        return {}


@runtime_checkable
class KnowsOwnWork(Protocol):
    """A capability of the Clock of one of several ranks.

    It takes two more marks: ``OWN`` before an exchange with the other ranks, whose time belongs to
    the next span, and ``EXCHANGE`` after it.
    """

    def own_work(self) -> list[tuple[float, ...]]:
        """Return a row for each step since the last call, or for every 2nd, 4th, ... of many.

        A row ends with the exchange of the gradients. It holds the number of the step, the seconds
        in exchanges, and the seconds of own work for each of ``SPANS``.
        """
        ...


@dataclass(frozen=True)
class LoaderContext:
    """What a Loader is given at runtime."""

    source: Source
    device: torch.device
    augment: Callable[[Batch, int], Batch]  # of (batch, epoch): finishes a batch on the device
    clock: Clock
    waits: Waits = field(default_factory=Waits)  # how long steps wait for batches
    labels: class_labels.LabelCheck | None = None  # refuses labels of host batches


class LoaderStats(NamedTuple):
    """How preparing batches went since the last call of ``Loader.stats``."""

    stages_s: Mapping[str, float]  # thread-seconds per stage, as in ``Source.stages``
    # The average number of host batches that were ready when the next one was requested. None if
    # none was requested, or if there is no queue.
    ready: float | None
    depth: int  # the most batches that the queue holds; 0 without a queue
    content: Content = MappingProxyType({})  # what the batches held, as in ``Source.content``


class Loader(Protocol):
    """Device batches in the source's order, safe on the current stream.

    A loader decides only when a batch is ready, never what is learned.
    """

    num_steps: int  # optimizer steps per epoch
    identity: dict[str, int]  # decides the records of each step; a resumed epoch has the same
    sampler: GivesBatches | None = None  # of the user's own, if the source has one
    notes: tuple[str, ...] = ()  # what the user should know about it here; printed once

    def expect(self, epoch: int, start: int, steps: int) -> None:
        """Begin to read ``steps`` steps from ``start`` of an epoch on, those of next epochs too.

        ``epoch`` continues what has begun if it asks for the next of these steps. Another call
        replaces the last one; 0 steps end all reading. Nothing happens unless the source reads on.
        """

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        """Yield the steps of an epoch from ``start`` on. Mark ``wait`` and ``copy`` on the clock.

        Errors of the source are raised here. Closing the iterator early cleans up.
        """
        ...

    def stats(self) -> LoaderStats:
        """Return the statistics since the last call, in the thread that takes the batches."""
        ...

    def close(self) -> None:
        """End all reading, and close the source."""
