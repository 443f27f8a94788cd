"""Real limits for the command of a planted set-up: control groups, cores and other programs.

Each is an ``around`` of `Planted`: a context that yields words to put before the command.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from planted.contract import Around

ROOT = Path("/sys/fs/cgroup")
# Moves itself into the groups, and becomes the command.
ENTER = 'for group in $GROUPS_OF_IT; do echo $$ > "$group/cgroup.procs"; done; exec "$@"'
# Brings up a loopback of its own, and becomes the command.
SLOW_LOOPBACK = (
    "ip link set lo up && "
    "tc qdisc add dev lo root tbf rate {rate}mbit burst 256kb latency 1s && "
    'exec "$@"'
)
SPIN = "while True: pass"
SWAP_BYTES = 2 << 30


def is_v2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def no_groups() -> str:
    """Return why control groups cannot be made here; "" if they can."""
    folder = ROOT / ("" if is_v2() else "cpu") / f"paceline-try-{os.getpid()}"
    try:
        folder.mkdir()
        folder.rmdir()
    except OSError as error:
        return f"needs root and control groups that can be written ({error})"
    return ""


def quota(cores: float) -> Around:
    """Let the command use ``cores`` of CPU time."""
    period = 100_000
    if is_v2():
        return in_groups({"cpu.max": f"{cores * period:.0f} {period}"})
    return in_groups({"cpu/cpu.cfs_quota_us": f"{cores * period:.0f}"})


def memory(num_bytes: int) -> Around:
    """Let the command use so much memory, cached files included."""
    if is_v2():
        return in_groups({"memory.max": str(num_bytes)})
    return in_groups({"memory/memory.limit_in_bytes": str(num_bytes)})


def in_groups(limits: Mapping[str, str]) -> Around:
    """Run the command in new control groups with these limits, by file below the root."""

    @contextmanager
    def around(folder: Path) -> Generator[list[str]]:
        name = f"paceline-{os.getpid()}"
        groups = dict.fromkeys((ROOT / file).parent / name for file in limits)
        try:
            for group in groups:
                group.mkdir()
            for file, text in limits.items():
                path = ROOT / file
                (path.parent / name / path.name).write_text(text)
            paths = " ".join(map(str, groups))
            yield ["env", f"GROUPS_OF_IT={paths}", "sh", "-c", ENTER, "sh"]
        finally:
            for group in groups:
                with suppress(OSError):
                    group.rmdir()

    return around


def swapping(num_bytes: int) -> Around:
    """Let the command use so much memory, and swap the rest to a file beside the data."""

    @contextmanager
    def around(folder: Path) -> Generator[list[str]]:
        file = folder / "swap"
        with open(file, "wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, SWAP_BYTES)
        file.chmod(0o600)
        subprocess.run(["mkswap", file], check=True, stdout=subprocess.DEVNULL)  # noqa: S607
        subprocess.run(["swapon", file], check=True)  # noqa: S607
        try:
            with memory(num_bytes)(folder) as prefix:
                yield prefix
        finally:
            subprocess.run(["swapoff", file], check=True)  # noqa: S607
            file.unlink()

    return around


def no_swap() -> str:
    """Return why no file can be swapped to here; "" if one can."""
    if os.geteuid() or not (shutil.which("mkswap") and shutil.which("swapon")):
        return "needs root, mkswap and swapon"
    return no_groups()


def disk_speed(bytes_per_s: int, memory_bytes: int) -> Around:
    """Let the command read so fast from the disk of its data, and cache little of it.

    Pages that other groups have cached stay readable at the speed of memory, so the files of the
    data are dropped from the page cache before.
    """

    @contextmanager
    def around(folder: Path) -> Generator[list[str]]:
        drop_files(folder)
        device = disk_of(folder)
        limits = {
            "blkio/blkio.throttle.read_bps_device": f"{device} {bytes_per_s}",
            "memory/memory.limit_in_bytes": str(memory_bytes),
        }
        if is_v2():
            limits = {"io.max": f"{device} rbps={bytes_per_s}", "memory.max": str(memory_bytes)}
        with in_groups(limits)(folder) as prefix:
            yield prefix

    return around


def disk_of(folder: Path) -> str:
    """Return ``major:minor`` of the whole disk that holds a folder."""
    device = os.stat(folder).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (block / "partition").exists():
        block = block.parent
    return (block / "dev").read_text(encoding="ascii").strip()


def drop_files(folder: Path) -> None:
    """Drop all files of a folder from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@contextmanager
def cached(folder: Path) -> Generator[list[str]]:
    """Read all files of a folder, so that they are in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()
    yield []


@contextmanager
def one_core(folder: Path) -> Generator[list[str]]:
    """Run the command on the first of our cores."""
    yield ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]


def no_taskset() -> str:
    if shutil.which("taskset") is None:
        return "needs taskset"
    return "" if len(os.sched_getaffinity(0)) > 1 else "needs two cores"


def slow_network(mbit_per_s: int) -> Around:
    """Run the command in a network namespace whose loopback is as slow as a network."""

    @contextmanager
    def around(folder: Path) -> Generator[list[str]]:
        script = SLOW_LOOPBACK.format(rate=mbit_per_s)
        yield ["unshare", "--net", "sh", "-c", script, "sh"]

    return around


def no_network() -> str:
    """Return why no slow network can be made here; "" if one can."""
    with slow_network(500)(ROOT) as prefix:
        try:
            done = subprocess.run([*prefix, "true"], check=False, capture_output=True, text=True)
        except FileNotFoundError:
            return "needs unshare"
    return f"needs root, ip and tc ({done.stderr.strip()})" if done.returncode else ""


@contextmanager
def beside_programs(folder: Path) -> Generator[list[str]]:
    """Keep every core busy with another program, which is no child of the command."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in os.sched_getaffinity(0)]
    try:
        yield []
    finally:
        for other in others:
            other.kill()
            other.wait()
