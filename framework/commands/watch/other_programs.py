"""How many cores other programs keep busy while a script runs."""

import multiprocessing
import os
import resource
import time
from typing import final

from framework.measure.host import busy_cpu_s, process_cpu_s


@final
class OtherPrograms:
    """The CPU time of all programs on our cores, less that of this process and its children."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._busy_s = busy_cpu_s()
        self._own_s = _own_s()

    def cores(self) -> float:
        """Return the mean since the start; 0 if the system does not say, or ranks run beside us."""
        busy_s = busy_cpu_s()
        if busy_s is None or self._busy_s is None or "RANK" in os.environ:
            return 0.0
        others_s = busy_s - self._busy_s - (_own_s() - self._own_s)
        return max(0.0, others_s) / max(time.perf_counter() - self._at, 1e-9)


def _own_s() -> float:
    """Return the CPU seconds of this process, and of its children that live or have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    living_s = sum(process_cpu_s(pid) or 0.0 for pid in children)
    return time.process_time() + ended.ru_utime + ended.ru_stime + living_s
