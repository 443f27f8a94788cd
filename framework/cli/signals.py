"""SIGINT, SIGTERM, SIGUSR1 (Slurm's word before its time limit): the first asks the run to stop after this step, the second stops it at once."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, Terminated

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME_S = 1.0  # a terminal and a launcher may both pass on one Ctrl-C


class StopSignals:
    """A context in which signals are noted. The handler only notes: no output, no locks."""

    def __init__(self) -> None:
        self._first = 0
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in NUMBERS}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stopped(self) -> bool:
        """Whether the run should stop."""
        return self._first != 0

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self._first == signal.SIGINT else EXIT_PREEMPTED

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._first and time.monotonic() - self._at > SAME_S:
            raise KeyboardInterrupt
        if not self._first:
            self._first, self._at = number, time.monotonic()


class Interrupts:
    """Lets SIGTERM and SIGUSR1 unwind the program as Ctrl-C does; by default it would leave temporary files and workers behind. ``first`` is the
    number of the first signal, also where a library takes the exception for a failure of its own.
    """

    first = 0

    def take(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                signal.signal(number, self._unwind)
        return self

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or number
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated
