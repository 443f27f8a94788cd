"""Campaigns of faults: many attempts, seeded, side by side, counted in rows of one table."""

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.forks import forked

Attempt = Callable[[random.Random], str]  # "" or, in a line, what went wrong


class Row(NamedTuple):
    """A row of the table."""

    fault: str  # what was done
    tried: int  # attempts
    failed: Sequence[str]  # a line for each attempt that went wrong, with the seed that repeats it
    seconds: float  # of all attempts
    note: str = ""  # for the last column


def repeat(
    fault: str, attempt: Attempt, times: int, seed: int, lanes: int = 2, note: str = ""
) -> Row:
    """Run ``attempt`` with ``times`` seeds from ``seed`` on in new folders, on ``lanes``."""
    start = time.perf_counter()
    results = multiprocessing.get_context("fork").SimpleQueue()
    seeds = range(seed, seed + times)
    processes = [forked(_lane, attempt, seeds[lane::lanes], results) for lane in range(lanes)]
    failed = [line for line in (results.get() for _ in seeds) if line]
    for process in processes:
        process.join()
    return Row(fault, times, failed, time.perf_counter() - start, note)


def repeat_numbered(fault: str, attempt: Callable[[int], str], numbers: range, seed: int) -> Row:
    """Run ``attempt`` once with every number, whichever lane is free."""
    counter = multiprocessing.get_context("fork").Value("i", numbers.start)

    def attempt_next(_: random.Random) -> str:
        with counter.get_lock():
            number = counter.value
            counter.value += 1
        return attempt(number)

    return repeat(fault, attempt_next, len(numbers), seed)


def _lane(attempt: Attempt, seeds: Sequence[int], results) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                outcome = attempt(random.Random(seed))
            except Exception as error:  # noqa: BLE001  # counted, and told
                outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            os.chdir("/")
        results.put(f"seed {seed}: {outcome}" if outcome else "")


def told(row: Row) -> str:
    """Return the row as a line of the table."""
    survived = row.tried - len(row.failed)
    return f"| {row.fault} | {row.tried:,} | {survived:,} | {row.seconds:.0f} s | {row.note} |"
