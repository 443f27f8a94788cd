"""Freed memory is kept. malloc's settings are for life, so a new process has them."""

import os
import subprocess
import sys

import pytest

from framework.system.memory import SETTINGS, keep_freed_memory

HEAP = """
import ctypes, sys
from framework.system.memory import give_back_freed_memory, keep_freed_memory
kept = keep_freed_memory(of_any_size=sys.argv[1] == "any")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = \
ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def size():
    line = next(line for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
    start, stop = (int(word, 16) for word in line.split()[0].split("-"))
    return (stop - start) >> 20
places = [libc.malloc(int(sys.argv[2]) << 20) for _ in range(100 // int(sys.argv[2]))]
held = size()
for place in places:
    libc.free(place)
after = size()
give_back_freed_memory()
print(kept, held, after, size())
"""


def _heap(sizes, each):
    """Return the heap's size in MiB at three times.

    These are with 100 MiB in blocks of ``each`` MiB taken from malloc, after they were freed, and
    after free memory was given back.
    """
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-c", HEAP, sizes, str(each)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    kept, *sizes = done.stdout.split()
    if kept != "True":
        pytest.skip("no glibc here")
    return map(int, sizes)


@pytest.mark.parametrize(("sizes", "each"), [("most", 20), ("any", 50)])
def test_freed_memory_stays_for_the_next_batch(sizes, each):
    held, after, given_back = _heap(sizes, each)
    assert min(held, after) >= 100
    assert given_back < 100


def test_who_has_set_malloc_by_the_environment_is_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not keep_freed_memory(of_any_size=False)
