"""The few lines of C that this package has, compiled when it is installed; every caller also has a way without them, to the same numbers."""

import ctypes
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

POINTER, NUMBER, COUNT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
SIGNATURES = {
    "paceline_gather": (POINTER, NUMBER, POINTER, NUMBER, NUMBER, NUMBER, POINTER, COUNT),
    "paceline_permutation": (NUMBER, NUMBER, POINTER),
    "paceline_crop_flip": (POINTER, *(NUMBER,) * 5, *(POINTER,) * 5, COUNT),
}


@cache
def find(name: str) -> Any:
    """The compiled function, which gives Python's lock away meanwhile; None where it could not be compiled."""
    library = _library()
    if library is None:
        return None
    function = getattr(library, name)
    function.argtypes = SIGNATURES[name]
    return function


def num_threads() -> int:
    """Threads that share a call: as many as torch's; beside the main thread only the caller, since the step is to have the cores."""
    return torch.get_num_threads() if threading.current_thread() is threading.main_thread() else 1


def alone() -> None:
    """From now on this thread's operators use no other threads: for who works beside the step. Otherwise OpenMP makes each such thread a
    team of its own, and because all teams together are more than the cores, lets the step's threads sleep between two operators: 5 % of a
    step (GCC's libgomp, ``gomp_managed_threads``). The main thread's number stays; torch.set_num_threads would change it.
    """
    torch.get_num_threads()  # torch sets a thread's number at its first operator there, so that has to be over
    library = _openmp()
    if library is not None:
        library.omp_set_num_threads(1)


@cache
def _library() -> Any:
    try:
        _openmp()
        return ctypes.CDLL(str(Path(__file__).with_name("_native.so")))
    except OSError:  # not compiled, or for another machine
        return None


@cache
def _openmp() -> Any:
    """The OpenMP library that torch has loaded for itself, for what is loaded next too: two of them would fight for the cores."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        if "libgomp" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[-1], mode=ctypes.RTLD_GLOBAL)
    return None
