"""Each in a process of its own: malloc's settings are for life."""

import os
import subprocess
import sys

import pytest

from framework.system.malloc import SETTINGS, keep_freed_memory

HEAP = """
import ctypes, sys
from framework.system.malloc import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def size():
    line = next(line for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
    start, stop = (int(word, 16) for word in line.split()[0].split("-"))
    return (stop - start) >> 20
places = [libc.malloc(50 << 20) for _ in range(2)]
held = size()
for place in places:
    libc.free(place)
print(kept, held, size())
"""


def _heap(keep, **environment):
    """Whether freed memory is kept; the heap's MiB with 100 MiB taken from malloc, and after they
    were given back.
    """
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-c", HEAP, keep]
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    kept, held, after = done.stdout.split()
    return kept, int(held), int(after)


def test_freed_memory_stays_for_the_next_batch():
    kept, held, after = _heap("keep")
    if kept != "True":
        pytest.skip("no glibc here")
    assert held >= 100
    assert after >= 100
    assert _heap("leave")[2] < 100


def test_who_has_set_malloc_by_the_environment_is_left_alone():
    assert _heap("keep", MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"


def test_asking_twice_is_asking_once():
    assert keep_freed_memory() is keep_freed_memory()
