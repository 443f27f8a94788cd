"""Limit and measure the memory of this process."""

import resource
from contextlib import suppress
from pathlib import Path

from framework.measure.host import total_memory_bytes

# The machine keeps this share of its memory for others, and at least so many bytes.
SPARE = 0.1
LEAST_SPARE = 1 << 29


def spare_bytes() -> int:
    """Return the memory that is left to other programs."""
    return max(LEAST_SPARE, int(SPARE * total_memory_bytes()))


def limit_this_process(num_bytes: int) -> None:
    """Let this process take ``num_bytes`` more and no more (RLIMIT_DATA).

    A larger request fails before any page is touched. If the kernel runs out of memory anyway,
    it ends this process first.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    wanted = _status_bytes("VmData") + num_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def forget_peak() -> None:
    """Restart the measurement of `peak_bytes`."""
    with suppress(OSError):  # Linux only, proc(5): clear_refs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return the most physical memory held since `forget_peak`; 0 if the system does not say."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status; 0 if it is missing. psutil does not know VmHWM."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0
