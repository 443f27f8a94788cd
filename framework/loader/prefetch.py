"""A background thread makes host batches while the step runs; the copy stays in line."""

from contextlib import closing
from typing import final

from framework.contracts.data import MicroBatches
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import Ahead, Occupancy, copied, host_batches
from framework.system.native import beside


@final
class PrefetchLoader:
    """A loader that keeps host batches ready.

    Attributes:
        depth: Batches ready ahead of the step.
        pin_memory: Whether the thread page-locks them if the device is CUDA.

    """

    def __init__(self, depth: int, pin_memory: bool, *, context: LoaderContext) -> None:
        self.context = context
        self.depth = depth
        self.pin = pin_memory and context.device.type == "cuda"
        self.num_steps = context.source.order.num_steps
        self.identity = context.source.order.identity
        self.notes: tuple[str, ...] = ()
        self._occupancy = Occupancy()

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        host = host_batches(self.context, epoch, start, self.pin)
        threads = beside(self.context.device)
        with closing(Ahead(host, self.depth, self._occupancy, threads)) as ahead:
            yield from copied(ahead, self.context, epoch)

    @property
    def num_ready(self) -> int:
        """How many batches were ready when the newest one was taken."""
        return self._occupancy.newest

    def stats(self) -> LoaderStats:
        return LoaderStats(self.context.source.stages(), self._occupancy.take(), self.depth)

    def close(self) -> None:
        self.context.source.close()
