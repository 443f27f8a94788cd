"""How much memory may be taken without driving this machine into swapping, and a process that cannot take more."""

import resource
from contextlib import suppress
from pathlib import Path

from framework.measure.host import total_memory_bytes

GIB = 1 << 30
SPARE = 0.1  # of the machine's memory is left to others,
LEAST_SPARE = GIB // 2  # and no less than this


def spare_bytes() -> int:
    """What is to be left alone."""
    return max(LEAST_SPARE, int(SPARE * total_memory_bytes()))


def limit_this_process(num_bytes: int) -> None:
    """Let this process take so much more, and no more: what asks for it gets an error before any page is touched (RLIMIT_DATA).

    Where the kernel must end a process for memory after all, it is this one.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    taken = _status_bytes("VmData")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = taken + num_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
    )


def forget_peak() -> None:
    """Have ``peak_bytes`` begin anew."""
    with suppress(OSError):  # Linux's: proc(5), clear_refs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The most physical memory this process held since ``forget_peak``; 0 where the system does not say."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status; 0 if it is not there. psutil does not know VmHWM."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0
