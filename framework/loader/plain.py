"""Take a host batch, copy it, step. The step waits for what the source's workers do not hide."""

from contextlib import closing
from typing import final

from framework.contracts.batch import move, pin
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import LoaderContext, LoaderStats


@final
class PlainLoader:
    """A loader without threads. With ``pin_memory``, CUDA copies from page-locked memory."""

    def __init__(self, pin_memory: bool, *, context: LoaderContext) -> None:
        self.context = context
        self.pin = pin_memory and context.device.type == "cuda"
        self.num_steps = context.source.order.num_steps
        self.identity = context.source.order.identity
        self.notes: tuple[str, ...] = ()

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        context = self.context
        with closing(context.source.batches(epoch, start)) as batches:
            for batch, weight, last in batches:
                context.clock.mark("wait")
                if self.pin:
                    batch = pin(batch)  # noqa: PLW2901
                device_batch = context.augment(move(batch, context.device), epoch)
                context.clock.mark("copy")
                yield MicroBatch(device_batch, weight, last)

    def stats(self) -> LoaderStats:
        return LoaderStats(self.context.source.stages(), None, 0)

    def close(self) -> None:
        self.context.source.close()
