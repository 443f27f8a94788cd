"""A loader that reads, copies and yields batches in the thread of the step."""

from typing import final

from framework.loader.prefetch import EpochLoader


@final
class PlainLoader(EpochLoader):
    """A loader without a thread of its own. The step waits for what workers have not done ahead.

    With ``pin_memory``, CUDA copies from page-locked memory.
    """
