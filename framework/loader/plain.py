"""A loader that reads, copies and yields batches in the thread of the step.

The step waits for work that the source's workers have not done ahead.
"""

from contextlib import closing
from typing import final

from framework.contracts.batch import pin
from framework.contracts.data import MicroBatches, content_of
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import copied
from framework.system.page_locked import use


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
        with closing(self._host_batches(epoch, start)) as batches:
            yield from copied(batches, self.context, epoch)

    def _host_batches(self, epoch: int, start: int) -> MicroBatches:
        """Yield the source's batches, page-locked. What else this thread makes is not."""
        with closing(self.context.source.batches(epoch, start)) as batches:
            if not self.pin:
                yield from batches
                return
            while True:
                use(self.context.device, pinned=True)
                try:
                    micro = next(batches, None)
                    if micro is not None:
                        micro = micro._replace(batch=pin(micro.batch))
                finally:
                    use(self.context.device, pinned=False)
                if micro is None:
                    return
                yield micro

    def stats(self) -> LoaderStats:
        # There is no queue.
        source = self.context.source
        return LoaderStats(source.stages(), ready=None, depth=0, content=content_of(source))

    def close(self) -> None:
        self.context.source.close()
