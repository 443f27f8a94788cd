"""A background thread makes host batches while the step runs; the copy stays in line."""

from typing import final

from framework.contracts.loader import LoaderContext
from framework.loader.queue import QueuedLoader


@final
class PrefetchLoader(QueuedLoader):
    """A loader that keeps host batches ready, page-locked if ``pin_memory`` and on CUDA."""

    def __init__(self, depth: int, pin_memory: bool, *, context: LoaderContext) -> None:
        super().__init__(depth, pin_memory, context)
