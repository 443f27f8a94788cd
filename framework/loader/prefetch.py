"""Host batches are made by a background thread while the step runs; the copy stays in line."""

from contextlib import closing
from typing import final

from framework.contracts.batch import move, pin, use
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import Ahead, Occupancy
from framework.system.native import beside


@final
class PrefetchLoader:
    """``depth``: batches ready ahead of the step; ``pin_memory``: page-lock them, in the thread, where the device is CUDA."""

    def __init__(self, depth: int, pin_memory: bool, *, context: LoaderContext) -> None:
        self.context, self.depth = context, depth
        self.pin = pin_memory and context.device.type == "cuda"
        self.num_steps, self.identity = (
            context.source.order.num_steps,
            context.source.order.identity,
        )
        self._occupancy = Occupancy()
        self.notes: tuple[str, ...] = ()

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        context = self.context
        with closing(
            Ahead(self._host(epoch, start), self.depth, self._occupancy, beside(context.device))
        ) as ahead:
            for batch, weight, last in ahead:
                context.clock.mark("wait")
                device_batch = context.augment(move(batch, context.device), epoch)
                context.clock.mark("copy")
                yield MicroBatch(device_batch, weight, last)

    def _host(self, epoch: int, start: int) -> MicroBatches:
        use(self.context.device, self.pin)
        with closing(self.context.source.batches(epoch, start)) as batches:
            for micro in batches:
                yield micro._replace(batch=pin(micro.batch)) if self.pin else micro

    @property
    def num_ready(self) -> int:
        """Batches that lay ready when the newest one was taken."""
        return self._occupancy.newest

    def stats(self) -> LoaderStats:
        return LoaderStats(self.context.source.stages(), self._occupancy.take(), self.depth)

    def close(self) -> None:
        self.context.source.close()
