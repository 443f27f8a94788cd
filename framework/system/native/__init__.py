"""Compiled code that takes the place of torch's operators, and threads beside the step.

Every caller also works without the C functions, and gets the same numbers.

The threads of a step spin between two operators, which takes the cores from threads that decode:
for milliseconds as long as all OpenMP teams have no more threads than there are cores, else for
microseconds (``do_spin`` in GCC's ``config/linux/wait.h``).
"""

import ctypes
import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from framework.errors import words_of

SHARED = 1 << 17  # elements: torch splits operators from 32,768 elements on
POINTER = ctypes.c_void_p
NUMBER = ctypes.c_int64
COUNT = ctypes.c_int
SIGNATURES = {
    "paceline_gather": (POINTER, NUMBER, POINTER, NUMBER, NUMBER, NUMBER, POINTER, COUNT),
    "paceline_gather_rows": (POINTER, NUMBER, *(POINTER,) * 3, NUMBER, POINTER, NUMBER),
    "paceline_should_ask": (),
    "paceline_ask_pages": (POINTER, NUMBER, POINTER, NUMBER, POINTER, NUMBER, NUMBER),
    "paceline_crc32": (POINTER, NUMBER, NUMBER, POINTER),
    "paceline_permutation": (NUMBER, NUMBER, POINTER),
    "paceline_bijection": (NUMBER, NUMBER, NUMBER, POINTER, NUMBER, NUMBER, POINTER),
    "paceline_draws": (POINTER, *(NUMBER,) * 3, POINTER),
    "paceline_random_windows": (POINTER, NUMBER, NUMBER, *(POINTER,) * 3),
    "paceline_crop_flip": (POINTER, *(NUMBER,) * 5, *(POINTER,) * 5, COUNT),
    "paceline_image_headers": (POINTER, *(NUMBER,) * 3),
    "paceline_decode_jpegs": (*(POINTER,) * 3, NUMBER, POINTER),
    "paceline_scale_windows": (POINTER, NUMBER, POINTER, POINTER),
    "paceline_color_jitter": (POINTER, COUNT, NUMBER, NUMBER, COUNT, POINTER, POINTER, COUNT),
}
# They keep Python's lock: the step's thread would give it back long after their quick end.
QUICK = {"paceline_draws", "paceline_random_windows", "paceline_should_ask"}
RESULTS = {"paceline_ask_pages": NUMBER}  # the others return an int, or nothing


@cache
def find(name: str) -> Any:
    """Return a compiled function, which runs without Python's lock unless it is quick; or None."""
    function = getattr(_library(ctypes.PyDLL if name in QUICK else ctypes.CDLL), name, None)
    if function is not None:
        function.argtypes = SIGNATURES[name]
        function.restype = RESULTS.get(name, COUNT)
    return function


def are_compiled() -> bool:
    return _library(ctypes.CDLL) is not None


class _Thread(threading.local):
    count = 1


_thread = _Thread()


def num_threads() -> int:
    """Return the number of threads that share a call of a compiled function.

    Outside the main thread: what ``limit_threads`` has set, or 1.
    """
    if threading.current_thread() is threading.main_thread():
        return torch.get_num_threads()
    return _thread.count


def num_threads_beside(device: torch.device) -> int:
    """Return the number of threads that deliver batches while a step runs on ``device``.

    On a GPU three quarters of the cores, at most 16: a thread copies 5 GB/s, the bus carries 55.
    """
    if device.type == "cpu":  # the step needs the others
        return 1
    return min(16, max(1, 3 * torch.get_num_threads() // 4))


def limit_threads(count: int) -> None:
    """Share the operators of this thread, which delivers batches, among ``count`` threads.

    1 makes no OpenMP team, so the step's threads keep spinning, which saves 3 to 30 % of a step on
    two cores. The main thread keeps its number, which torch.set_num_threads would change.
    """
    # torch sets a thread's number at its first operator there, which must come first.
    torch.get_num_threads()
    _thread.count = count
    library = _openmp()
    if library is not None:
        library.omp_set_num_threads(count)


@contextmanager
def crowded() -> Generator[None]:
    """Keep the step's threads from spinning inside the block, while other threads decode.

    It holds one more OpenMP team, which sleeps: 16 to 22 % more photographs on two cores.
    """
    made = threading.Event()
    end = threading.Event()

    def stay() -> None:
        try:
            torch.ones(SHARED).add_(1)  # makes this thread's team
        finally:
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


@final
@dataclass(eq=False)
class CheckedKernel:
    """Runs a GPU kernel, whose first result of each kind must be that of torch's operators."""

    failure: str | None = None  # why it is no longer used
    _checked: set[Hashable] = field(default_factory=set[Hashable])

    def __call__(
        self, kind: Hashable, kernel: Callable[[], Tensor], operators: Callable[[], Tensor]
    ) -> Tensor | None:
        """Return the kernel's result, or None if the operators, which do the same, must be used.

        ``kind`` is what the compiled code depends on. ``kernel`` may raise anything: a package or a
        compiler may be missing.
        """
        if self.failure is not None:
            return None
        try:
            result = kernel()
            if kind not in self._checked and result.numel():
                expected = operators()
                if result.dtype != expected.dtype or not torch.equal(result, expected):
                    self.failure = "its numbers differ from the operators'"
                    return None
                self._checked.add(kind)
        except Exception as error:  # noqa: BLE001  # see ``kernel``
            self.failure = f"{type(error).__name__}: {words_of(error)[:200]}"
            return None
        return result


@cache
def _library(kind: Any) -> Any:
    try:
        _openmp()
        return kind(str(Path(__file__).with_name("_native.so")))
    except OSError:  # not compiled, or for another machine
        return None


@cache
def _openmp() -> Any:
    """Return torch's OpenMP library, and let later ones use it: two would compete for the cores."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line)
    packages = Path(torch.__file__).parent.parent
    own = [path for path in paths if packages in Path(path).parents and "torch" in path]
    for path in (*own, *paths):
        with suppress(OSError):  # an update of the package may have deleted the file
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return None
