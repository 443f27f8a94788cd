"""The speed of the machine itself: a fixed computation that no change of the code can slow down."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from framework.measure.host import num_cores

BLOCK = bytes(1 << 20)  # hashing a large block releases Python's lock, so all cores work
SECONDS = 0.1


def yardstick() -> float:
    """Return the MiB per second that all cores of this process hash together."""
    cores = num_cores()
    end = time.perf_counter() + SECONDS
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(_hash, [end] * cores))


def _hash(end: float) -> float:
    start = time.perf_counter()
    count = 0
    while count == 0 or time.perf_counter() < end:
        hashlib.sha256(BLOCK).digest()
        count += 1
    return count / (time.perf_counter() - start)
