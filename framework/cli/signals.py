"""SIGINT, SIGTERM, SIGUSR1 (Slurm's warning before its time limit): the first asks a run to stop after this step, the second stops it at once."""

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from framework.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_PREEMPTED
from framework.stopping import NUMBERS, SAME_S, end


class StopSignals:
    """A context in which signals are noted. The handler only notes: no output, no locks.

    ``of_rank``: not before they are asked for, after the first step: until then a rank may wait for one that is dead, has nothing to save, and
    ends at once; and none any more afterwards, when it writes how it ended.
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
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in NUMBERS}

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._first and not self._of_rank:
            return  # one Ctrl-C may come twice, and the second must not change how the run ends
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._of_rank else handler)

    def stopped(self) -> bool:
        """Whether the run should stop."""
        if self._waiting:
            self._waiting = False
            self._take()
        return self._first != 0

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self._first == signal.SIGINT else EXIT_PREEMPTED

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._home:  # a worker that has no handlers of its own yet: its parent decides
            return
        if not self._first:
            self._first, self._at = number, time.monotonic()
        elif time.monotonic() - self._at > SAME_S:
            end(number)


def reader_has_gone() -> int:
    """Nobody reads our output any more, as in ``| head``: nothing is wrong here. Returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again when it exits
    return EXIT_PIPE
