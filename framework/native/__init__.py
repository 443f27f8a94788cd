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


@cache
def _library() -> Any:
    try:
        _offer_openmp()
        return ctypes.CDLL(str(Path(__file__).with_name("_native.so")))
    except OSError:  # not compiled, or for another machine
        return None


def _offer_openmp() -> None:
    """Lets what is loaded next find the OpenMP library that torch has loaded for itself: two of them would fight for the cores."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        if "libgomp" in line:
            ctypes.CDLL(line.split(maxsplit=5)[-1], mode=ctypes.RTLD_GLOBAL)
            return
