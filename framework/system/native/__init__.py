"""The few lines of C that this package has, compiled when it is installed; every caller also has a way without them, to the same numbers."""

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

SHARED = 1 << 17  # elements: torch shares an operator out from 32,768 on
POINTER, NUMBER, COUNT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
SIGNATURES = {
    "paceline_gather": (POINTER, NUMBER, POINTER, NUMBER, NUMBER, NUMBER, POINTER, COUNT),
    "paceline_permutation": (NUMBER, NUMBER, POINTER),
    "paceline_crop_flip": (POINTER, *(NUMBER,) * 5, *(POINTER,) * 5, COUNT),
    "paceline_color_jitter": (POINTER, COUNT, NUMBER, NUMBER, COUNT, POINTER, POINTER, COUNT),
}


@cache
def find(name: str) -> Any:
    """The compiled function, which gives Python's lock away meanwhile; None where it could not be compiled, or was from older sources."""
    library = _library()
    function = getattr(library, name, None)
    if function is None:
        return None
    function.argtypes = SIGNATURES[name]
    return function


class _Thread(threading.local):
    count = 1


_thread = _Thread()


def num_threads() -> int:
    """Threads that share a call: as many as torch's; in another thread than the main one what ``limit_threads`` said there, or 1, since the
    step is to have the cores.
    """
    return (
        torch.get_num_threads()
        if threading.current_thread() is threading.main_thread()
        else _thread.count
    )


def beside(device: torch.device) -> int:
    """Threads for who hands over batches beside the step on ``device``: of a GPU's host half the cores of this process, up to 8, since one
    copies less than the bus can carry; on the CPU 1, since the step has the others.
    """
    return 1 if device.type == "cpu" else min(8, max(1, torch.get_num_threads() // 2))


# How the step's threads wait for each other between two operators: GCC's libgomp lets them spin for milliseconds while all OpenMP teams
# together have no more threads than there are cores, and for microseconds otherwise (do_spin in its config/linux/wait.h). Spinning is best
# where the step has the cores to itself, and takes them from whoever decodes beside it where it has not.


def limit_threads(count: int) -> None:
    """From now on this thread's operators are shared by ``count`` threads: for who hands over beside the step. 1 makes no OpenMP team, so the
    step's threads go on spinning: 3 to 5 % of a convolutional net's step on two cores, a third of the digits'. The main thread's number of
    threads stays; torch.set_num_threads would change it.
    """
    torch.get_num_threads()  # torch sets a thread's number at its first operator there, so that has to be over
    _thread.count = count
    library = _openmp()
    if library is not None:
        library.omp_set_num_threads(count)


@contextmanager
def crowded() -> Generator[None]:
    """While threads of this process decode beside the step: one more OpenMP team, which sleeps, so that the step's threads do not spin. On
    two cores, photographs beside a small convolutional net: 16 to 22 % more records per second.
    """
    made, end = threading.Event(), threading.Event()

    def stay() -> None:
        torch.ones(SHARED).add_(1)  # in a new thread, which is not alone
        made.set()
        end.wait()

    thread = threading.Thread(target=stay, name="paceline-crowd", daemon=True)
    thread.start()
    try:
        made.wait()
        yield
    finally:
        end.set()
        thread.join()


@cache
def _library() -> Any:
    try:
        _openmp()
        return ctypes.CDLL(str(Path(__file__).with_name("_native.so")))
    except OSError:  # not compiled, or for another machine
        return None


@cache
def _openmp() -> Any:
    """The OpenMP library that torch has loaded for itself, for what is loaded next too: two of them would fight for the cores. Others bring their own
    (scikit-learn does), so torch's folder comes first.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line)
    of_torch = [
        path
        for path in paths
        if Path(torch.__file__).parent.parent in Path(path).parents and "torch" in path
    ]
    found = next(iter([*of_torch, *paths]), None)
    return None if found is None else ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
