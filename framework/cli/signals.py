"""Signals during training: the first stops the run after its step, the second ends it at once.

They are SIGINT, SIGTERM, and SIGUSR1, which is Slurm's warning before its time limit.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from framework.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_PREEMPTED
from framework.system.stopping import NUMBERS, SAME_S, end, set_all


class StopSignals:
    """A context that notes signals. After the block one changes nothing, until ``end_again``.

    A rank notes signals after the first call of ``stopped``, which follows its first step: until
    then it has nothing to save, so it ends at once. After the block it ignores them.
    """

    def __init__(self, of_rank: bool) -> None:
        self._of_rank = of_rank
        self._waiting = of_rank
        self._first = 0
        self._at = 0.0
        self._home = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if not self._waiting:
            self._take()
        return self

    def _take(self) -> None:
        global _last  # noqa: PLW0603  # a process has one set of handlers
        if threading.current_thread() is threading.main_thread():
            _last = self
            self._before = {number: signal.signal(number, self._note) for number in NUMBERS}

    def __exit__(self, *_: object) -> None:
        if self._before and self._of_rank:
            set_all(signal.SIG_IGN)

    def stopped(self) -> bool:
        """Return whether the run should stop."""
        if self._waiting:
            self._waiting = False
            self._take()
        return self._first != 0

    @property
    def exit_code(self) -> int:
        if self._first == signal.SIGINT:
            return EXIT_INTERRUPTED
        return EXIT_PREEMPTED

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._home:
            return  # a worker without handlers of its own: its parent decides
        if not self._first:
            self._first = number
            self._at = time.monotonic()
        elif time.monotonic() - self._at > SAME_S:
            end(number)

    def put_back(self) -> None:
        """Restore the handlers from before the block, and let them answer a noted signal."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self._first:
            signal.raise_signal(self._first)


_last: StopSignals | None = None


def end_again() -> None:
    """Let signals end the process again after a job of a sweep. A noted signal ends it now."""
    global _last
    last, _last = _last, None
    if last is not None:
        last.put_back()


def reader_has_gone() -> int:
    """Return the exit code for output that nobody reads, as in ``| head``, which is no error."""
    # Without this Python complains again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE
