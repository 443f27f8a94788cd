"""A loader that reads, copies and yields batches in the thread of the step.

The step waits for work that the source's workers have not done ahead.
"""

from typing import final

from framework.contracts.data import MicroBatches
from framework.contracts.loader import LoaderStats
from framework.loader.prefetch import EpochLoader, Steps, host_batches


@final
class PlainLoader(EpochLoader):
    """A loader without a thread of its own.

    With ``pin_memory``, CUDA copies from page-locked memory.
    """

    def stats(self) -> LoaderStats:
        source = self.context.source
        return LoaderStats(source.stages(), ready=None, depth=0, content=source.content())

    def _open(self, steps: Steps) -> MicroBatches:
        return host_batches(self.context, steps, self.pin)
