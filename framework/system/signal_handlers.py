"""Signal handlers for the length of a block."""

import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(
    numbers: Iterable[signal.Signals],
    handler: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Generator[None, None, None]:
    """Install ``handler`` for ``numbers`` until the block ends.

    Does nothing outside the main thread, the only one in which Python accepts handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known or signal.SIG_DFL)
