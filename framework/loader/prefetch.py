"""A background thread makes host batches while the step runs; the copy stays in line."""

from typing import final

from framework.contracts.data import MicroBatches
from framework.contracts.loader import LoaderContext
from framework.loader.queue import QueuedLoader, copied


@final
class PrefetchLoader(QueuedLoader):
    """A loader that keeps host batches ready, page-locked if ``pin_memory`` and on CUDA."""

    def __init__(self, depth: int, pin_memory: bool, *, context: LoaderContext) -> None:
        super().__init__(depth, pin_memory, context)

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with self._host(epoch, start) as batches:
            yield from copied(batches, self.context, epoch, self._number)
