"""SIGINT, SIGTERM, SIGUSR1 (Slurm's warning before its time limit): the first asks a run to stop after this step, the second stops it at once."""

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from framework.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_PREEMPTED
from framework.system.stopping import NUMBERS, SAME_S, end, set_all


class StopSignals:
    """A context in which signals are noted. The handler only notes: no output, no locks.

    After the block signals are still noted, and change nothing: the run has ended, and says how.
    ``end_again`` gives them back their meaning.

    Args:
        of_rank: Note signals only after they are first asked for, which is after the first step. Until then a rank may
            wait for one that is dead, has nothing to save, and ends at once. After the block it ignores them.

    """

    def __init__(self, of_rank: bool) -> None:
        self._of_rank, self._waiting = of_rank, of_rank
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before and self._of_rank:
            set_all(signal.SIG_IGN)

    def stopped(self) -> bool:
        """Whether the run should stop."""
        if self._waiting:
            self._waiting = False
            self._take()
        return self._first != 0

    def put_back(self) -> None:
        """Put the handlers from before the block back. A signal that has come gets its answer from them."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._first:
            signal.raise_signal(self._first)

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self._first == signal.SIGINT else EXIT_PREEMPTED

    def _note(self, number: int, frame: FrameType | None) -> None:
        if (
            os.getpid() != self._home
        ):  # a worker that has no handlers of its own yet: its parent decides
            return
        if not self._first:
            self._first, self._at = number, time.monotonic()
        elif time.monotonic() - self._at > SAME_S:
            end(number)


_last: StopSignals | None = None


def end_again() -> None:
    """Have signals end the process again after a job of a sweep. One that came since the job's last step ends it now."""
    global _last
    last, _last = _last, None
    if last is not None:
        last.put_back()


def reader_has_gone() -> int:
    """Nobody reads our output any more, as in ``| head``: nothing is wrong here. Returns the exit code."""
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
    )  # or Python complains again when it exits
    return EXIT_PIPE
