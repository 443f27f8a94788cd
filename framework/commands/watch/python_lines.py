"""Which lines of a script's own Python take its time, and how much of it holds Python's lock."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

from framework.commands.diagnose.host_python import PythonLine
from framework.measure.stack_sampler import StackSampler

FIRST_STEP = 4  # that is sampled
NUM_SAMPLED = 10  # steps: a sample takes 50 us, so that sampling all would slow the script down
MOST_LINES = 3
LEAST_SHARE = 0.1
ALONE_S = 0.1  # for counting without anything beside it


@final
class SampledSteps:
    """Samples the thread that trains, in a few steps."""

    def __init__(self) -> None:
        self._sampler = StackSampler()
        self._is_on = False

    def after_batch(self, num_steps: int) -> None:
        """Start, continue or stop. ``num_steps`` are measured so far."""
        is_sampled = FIRST_STEP <= num_steps < FIRST_STEP + NUM_SAMPLED
        if not is_sampled:
            self.stop()
        elif not self._is_on:
            self._is_on = True
            self._sampler.start()

    def stop(self) -> None:
        """Stop until the next training batch, because what follows is no part of a step."""
        if self._is_on:
            self._is_on = False
            self._sampler.stop()

    def lines(self) -> list[PythonLine]:
        return lines_of(self._sampler, "step")


def lines_of(sampler: StackSampler, part: str) -> list[PythonLine]:
    """Return the lines with the largest shares of the sampled time."""
    whole_s = max(sampler.total_s, 1e-9)
    lines = sorted(sampler.lines(), key=lambda line: -line.python_s)
    return [
        PythonLine(part, *line.place, line.place.text, line.python_s / whole_s)
        for line in lines[:MOST_LINES]
        if line.python_s > LEAST_SHARE * whole_s
    ]


@contextmanager
def counted_beside(count: Callable[[int], object]) -> Generator[None]:
    """Count in a second thread as fast as Python's lock lets it, and tell ``count`` in the end."""
    done = threading.Event()
    counted = 0

    def run() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=run, name="paceline-count", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        count(counted)


def lock_share(action: Callable[[], object], seconds: float) -> float:
    """Return the share of its time for which ``action`` holds Python's lock, 0 to 1.

    A thread that counts has half the lock beside code that never lets go of it, and all of it
    beside code that never takes it.
    """
    rates: list[float] = []

    def note(counted: int) -> None:
        rates.append(counted / (time.perf_counter() - start))

    for work, length_s in ((lambda: time.sleep(0.01), ALONE_S), (action, seconds)):
        start = time.perf_counter()
        with counted_beside(note):
            while time.perf_counter() - start < length_s:
                work()
    alone, beside = rates
    return min(1.0, max(0.0, 2 * (1 - beside / max(alone, 1.0))))
