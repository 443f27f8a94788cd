"""How fast the machine itself is at this moment: a fixed computation beside each measurement, which no change of ours can slow down."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from framework.measure.host import num_cores

BLOCK = bytes(1 << 20)  # hashing gives Python's lock away, so that every core is at work
SECONDS = 0.1


def yardstick() -> float:
    """MiB per second that all cores of this process hash together."""
    cores = num_cores()
    end = time.perf_counter() + SECONDS
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(_hash, [end] * cores))


def _hash(end: float) -> float:
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() < end:
        hashlib.sha256(BLOCK).digest()
        count += 1
    return count / (time.perf_counter() - start)
