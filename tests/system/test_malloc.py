"""Each in a process of its own: malloc's settings are for life."""

import os
import subprocess
import sys

import pytest

from framework.system.malloc import SETTINGS

HEAP = """
import ctypes, sys
from framework.system.malloc import give_back_freed_memory, keep_freed_memory
kept = keep_freed_memory(of_any_size=sys.argv[2] == "any") if sys.argv[1] == "keep" else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = \
ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def size():
    line = next(line for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
    start, stop = (int(word, 16) for word in line.split()[0].split("-"))
    return (stop - start) >> 20
places = [libc.malloc(int(sys.argv[3]) << 20) for _ in range(100 // int(sys.argv[3]))]
held = size()
for place in places:
    libc.free(place)
after = size()
give_back_freed_memory()
print(kept, held, after, size())
"""


def _heap(keep, sizes="most", each=20, **environment):
    """Return whether freed memory is kept, and the heap's size in MiB at three times.

    The heap is measured with 100 MiB in blocks of ``each`` MiB taken from malloc, after they were
    freed, and after free memory was given back.
    """
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-c", HEAP, keep, sizes, str(each)]
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    kept, *sizes = done.stdout.split()
    return kept, *map(int, sizes)


def test_freed_memory_stays_for_the_next_batch():
    kept, held, after, given_back = _heap("keep")
    if kept != "True":
        pytest.skip("no glibc here")
    assert held >= 100
    assert after >= 100
    assert given_back < 100
    assert _heap("leave")[2] < 100


def test_training_on_the_cpu_keeps_blocks_of_any_size():
    kept, held, after, given_back = _heap("keep", "any", 50)
    if kept != "True":
        pytest.skip("no glibc here")
    assert min(held, after) >= 100
    assert given_back < 100
    assert _heap("keep", "most", 50)[1] < 100


def test_who_has_set_malloc_by_the_environment_is_left_alone():
    assert _heap("keep", MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"
