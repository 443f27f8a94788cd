import math
import multiprocessing
import os
import time
from contextlib import suppress

import pytest

from framework.measure.cgroup import ROOT, Cgroups, Throttle
from tests.forks import forked

V1 = "4:memory:/job\n1:cpu,cpuacct:/job/part\n0::/\n"
V2 = "0::/job/part\n"


@pytest.fixture
def groups(tmp_path):
    """Return ``groups(own, {file: text})``, which writes the files of control groups."""

    def made(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "root" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return Cgroups(tmp_path / "root", tmp_path / "own")

    return made


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (V2, {}, math.inf),
        (V2, {"job/part/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"job/part/cpu.max": "max 100000\n", "job/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/elsewhere\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (
            V1,
            {
                "cpu/job/part/cpu.cfs_quota_us": "50000\n",
                "cpu/job/part/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ("not a list of groups", {"cpu.max": "150000 100000\n"}, 1.5),
    ],
)
def test_the_smallest_quota_around_the_process_limits_its_cores(groups, own, files, cores):
    assert groups(own, files).cores() == cores


@pytest.mark.parametrize(
    ("own", "folder", "stat"),
    [
        (V2, "job/part/", "usage_usec 9\nnr_periods 20\nnr_throttled 13\nthrottled_usec 165000\n"),
        (V1, "cpu/job/part/", "nr_periods 20\nnr_throttled 13\nthrottled_time 165000000\n"),
    ],
)
def test_throttled_time_is_read_in_seconds(groups, own, folder, stat):
    if own == V2:
        quota = {"cpu.max": "50000 100000"}
    else:
        quota = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
    files = {f"{folder}{name}": text for name, text in {**quota, "cpu.stat": stat}.items()}
    assert groups(own, files).throttle() == Throttle(20, 13, 0.165)


def test_without_a_quota_nothing_is_throttled(groups):
    files = {"job/cpu.max": "max 100000\n", "job/cpu.stat": "nr_periods 0\nnr_throttled 0\n"}
    assert groups(V2, files).throttle() is None


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            V2,
            {
                "job/memory.max": "1000\n",
                "job/memory.current": "700\n",
                "job/memory.stat": "anon 1\ninactive_file 200\n",
            },
        ),
        (
            V1,
            {
                "memory/job/memory.limit_in_bytes": "1000\n",
                "memory/job/memory.usage_in_bytes": "700\n",
                "memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 200\n",
            },
        ),
    ],
)
def test_cached_files_count_as_free_memory(groups, own, files):
    assert groups(own, files).memory_limit_bytes() == 1000
    assert groups(own, files).available_memory_bytes() == 500


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (V2, {"job/memory.max": "max\n", "job/memory.current": "700\n"}),
        (V1, {"memory/job/memory.limit_in_bytes": "9223372036854771712\n"}),
        (V1, {}),
    ],
)
def test_without_a_limit_there_is_no_figure(groups, own, files):
    assert groups(own, files).memory_limit_bytes() is None
    assert groups(own, files).available_memory_bytes() is None


def _spin(pipe):
    """Compute for half a second once it may begin, and send the figures of its groups."""
    pipe.recv()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    pipe.send((Cgroups().cores(), Cgroups().throttle().throttled, Cgroups().memory_limit_bytes()))


@pytest.fixture
def real_groups():
    """Yield the folders of groups with a tenth of a core and 1 GiB.

    They have the version of control groups that this machine has.
    """
    name = f"paceline-{os.getpid()}"
    limits = {f"{name}/cpu.max": "10000 100000", f"{name}/memory.max": str(1 << 30)}
    if not (ROOT / "cgroup.controllers").exists():
        limits = {f"cpu/{name}/cpu.cfs_quota_us": "10000"}
        limits[f"memory/{name}/memory.limit_in_bytes"] = str(1 << 30)
    folders = list(dict.fromkeys((ROOT / file).parent for file in limits))
    try:
        for folder in folders:
            folder.mkdir()
        for file, text in limits.items():
            (ROOT / file).write_text(text)
        yield folders
    except OSError as error:
        pytest.skip(f"needs root and control groups that can be written: {error}")
    finally:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()


def test_real_groups_are_read_and_their_quota_stops_a_process(real_groups):
    here, there = multiprocessing.Pipe()
    child = forked(_spin, there)
    for folder in real_groups:
        (folder / "cgroup.procs").write_text(str(child.pid))
    here.send("go")
    cores, throttled, memory = here.recv()
    child.join()
    assert (cores, memory) == (0.1, 1 << 30)
    assert throttled > 0
