"""A loader that reads, copies and yields batches in the thread of the step.

The step waits for work that the source's workers have not done ahead.
"""

from contextlib import closing
from typing import final

from framework.contracts.data import MicroBatches, content_of
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import copied, host_batches


@final
class PlainLoader:
    """A loader without a thread of its own.

    With ``pin_memory``, CUDA copies from page-locked memory.
    """

    def __init__(self, pin_memory: bool, *, context: LoaderContext) -> None:
        self.context = context
        self.pin = pin_memory and context.device.type == "cuda"
        self.num_steps = context.source.order.num_steps
        self.identity = context.source.order.identity
        self.notes: tuple[str, ...] = ()

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(host_batches(self.context, epoch, start, self.pin)) as batches:
            yield from copied(batches, self.context, epoch)

    def stats(self) -> LoaderStats:
        # There is no queue.
        source = self.context.source
        return LoaderStats(source.stages(), ready=None, depth=0, content=content_of(source))

    def close(self) -> None:
        self.context.source.close()
