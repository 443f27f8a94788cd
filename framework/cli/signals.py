"""Signals during training.

SIGINT, SIGTERM and SIGUSR1, which is Slurm's warning before its time limit, mean the same: the
first stops the run after its step, the second ends it at once. They get their meaning before
anything large is imported.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, ClassVar

from framework.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_PREEMPTED
from framework.system.stopping import NUMBERS, SAME_S, die_with_parent, end, set_all


class StopSignals:
    """A context that notes signals. After the block a signal changes nothing until ``end_again``.

    A rank notes signals after the first call of ``stopped``, which follows its first step: until
    then it has nothing to save, so it ends at once. After the block it ignores them.
    """

    _last: ClassVar["StopSignals | None"] = None  # a process has one set of handlers

    def __init__(self, of_rank: bool) -> None:
        self._of_rank = of_rank
        self._waits_for_step = of_rank
        self.first = 0
        self._first_s = 0.0
        self._home = os.getpid()
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if not self._waits_for_step:
            self._install()
        return self

    def _install(self) -> None:
        def note(number: int, _: FrameType | None) -> None:
            if os.getpid() != self._home:
                return  # a worker without handlers of its own: its parent decides
            if not self.first:
                self.first = number
                self._first_s = time.monotonic()
            elif time.monotonic() - self._first_s > SAME_S:
                end(number)

        if threading.current_thread() is threading.main_thread():
            StopSignals._last = self
            self.before = {number: signal.signal(number, note) for number in NUMBERS}

    def __exit__(self, *_: object) -> None:
        if self.before and self._of_rank:
            set_all(signal.SIG_IGN)

    def stopped(self) -> bool:
        """Return whether the run should stop."""
        if self._waits_for_step:
            self._waits_for_step = False
            self._install()
        return self.first != 0

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.first == signal.SIGINT else EXIT_PREEMPTED

    @staticmethod
    def end_again() -> None:
        """Let signals end the process again after a job of a sweep. A noted signal ends it now."""
        last, StopSignals._last = StopSignals._last, None
        if last is not None:
            for number, handler in last.before.items():
                signal.signal(number, handler or signal.SIG_DFL)
            if last.first:
                signal.raise_signal(last.first)


def closed_output_code() -> int:
    """Return the exit code for output that nobody reads, as in ``| head``, which is no error."""
    # Without this Python complains again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE


def begin_rank(path: str) -> None:
    """Let this process end with its launcher, which holds the file ``path`` in memory."""
    die_with_parent()
    set_all(signal.SIG_DFL)  # there is nothing to save before the first step
    # The launcher may have died before the kernel knew that this process must die with it.
    if not os.path.exists(path):
        os._exit(1)
