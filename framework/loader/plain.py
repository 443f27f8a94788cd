"""Take a host batch, copy it, step. The step waits for what the source's workers do not hide."""

from contextlib import closing
from typing import final

from framework.contracts.data import MicroBatches
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import copied


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
        with closing(self.context.source.batches(epoch, start)) as batches:
            yield from copied(batches, self.context, epoch, self.pin)

    def stats(self) -> LoaderStats:
        return LoaderStats(self.context.source.stages(), None, 0)

    def close(self) -> None:
        self.context.source.close()
