"""Facts about the machine. Files of control groups and of a host with two sockets are made here."""

import math
import mmap
import os
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from framework.measure import host


def test_the_peak_of_memory_never_falls_and_sees_what_was_held():
    before = host.peak_rss_bytes()
    # in pages of its own: malloc may have free ones from other tests
    with mmap.mmap(-1, before + (64 << 20) - host.rss_bytes(os.getpid())) as held:
        held.write(b"x" * len(held))
    assert host.peak_rss_bytes() >= before + (32 << 20)


def test_cores_are_those_this_process_may_run_on():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert host.num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert host.num_cores() == len(before)


@pytest.mark.parametrize(("quota", "cores"), [(math.inf, 4), (0.2, 1), (1.5, 2), (2.0, 2), (64, 4)])
def test_a_containers_share_of_time_limits_the_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(host.Cgroups, "cores", lambda _: quota)
    assert host.num_cores() == cores


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        *(({}, 6), ({"OMP_NUM_THREADS": "2,1"}, 2), ({"OMP_NUM_THREADS": "0"}, 6)),
        ({"OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}, 3),
    ],
)
def test_threads_are_what_somebody_has_set_or_the_cores(monkeypatch, environment, threads):
    for name in ("OMP_NUM_THREADS", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(host, "num_cores", lambda: 6)
    assert host.threads_per_rank() == threads


V1 = "4:memory:/job\n1:cpu,cpuacct:/job/part\n0::/\n"
V2 = "0::/job/part\n"
V1_QUOTA = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
UNLIMITED = (math.inf, math.inf)


@pytest.fixture
def groups(tmp_path):
    """Return ``groups(own, {file: text})``, which writes the files of control groups."""

    def made(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "root" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return host.Cgroups(tmp_path / "root", tmp_path / "own")

    return made


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (V2, {}, math.inf),
        (V2, {"job/part/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"job/part/cpu.max": "max 100000\n", "job/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/elsewhere\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (V1, {f"cpu/job/part/{name}": text for name, text in V1_QUOTA.items()}, 0.5),
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
    quota = {"cpu.max": "50000 100000"} if own == V2 else V1_QUOTA
    files = {f"{folder}{name}": text for name, text in {**quota, "cpu.stat": stat}.items()}
    assert groups(own, files).throttle() == host.Throttle(20, 13, 0.165)


@pytest.mark.parametrize(
    ("own", "files", "memory"),
    [
        (
            V2,
            {
                "job/memory.max": "1000\n",
                "job/memory.current": "700\n",
                "job/memory.stat": "anon 1\ninactive_file 200\n",
            },
            (1000, 500),
        ),
        (
            V1,
            {
                "memory/job/memory.limit_in_bytes": "1000\n",
                "memory/job/memory.usage_in_bytes": "700\n",
                "memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 200\n",
            },
            (1000, 500),
        ),
        (V2, {"job/memory.max": "max\n", "job/memory.current": "700\n"}, UNLIMITED),
        (V1, {"memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, UNLIMITED),
        (V1, {}, UNLIMITED),
    ],
    ids=["v2", "v1", "v2-max", "v1-max", "none"],
)
def test_cached_files_count_as_free_memory_below_the_limit(groups, own, files, memory):
    assert groups(own, files).memory_bytes() == memory


GPU = torch.device("cuda", 1)


@pytest.fixture
def socket_of(tmp_path, monkeypatch):
    """Yield a function that writes the system's files: the GPU's node, and the node's cores."""
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(host, "SYSTEM", tmp_path)
    monkeypatch.setattr(host, "_before", [])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xDC, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)

    def make(node, cores):
        folder = tmp_path / "bus/pci/devices/0000:dc:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        folder = tmp_path / "devices/system/node/node1"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")

    yield make
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), before)


needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@needs_cores
def test_a_rank_stays_on_its_gpus_node_and_so_do_its_threads(socket_of):
    mine, total = max(os.sched_getaffinity(0)), host.num_cores()
    go, seen = threading.Event(), []
    thread = threading.Thread(target=lambda: go.wait() and seen.append(os.sched_getaffinity(0)))
    thread.start()
    socket_of(1, f"{mine},700-703")
    host.stay_on_gpu_node(GPU)
    go.set()
    thread.join()
    assert os.sched_getaffinity(0) == {mine}
    assert seen == [{mine}]
    assert host.num_cores() == total  # the ranks share all


@pytest.mark.parametrize(("node", "cores"), [(-1, "0-63"), (1, "700-703"), (1, ""), (1, "0-4095")])
def test_without_a_node_or_one_of_its_cores_nothing_changes(node, cores, socket_of):
    before = os.sched_getaffinity(0)
    socket_of(node, cores)
    host.stay_on_gpu_node(GPU)
    assert os.sched_getaffinity(0) == before


PLACES = {"/dev/shm": "tmpfs", "/": "ext4", "/mnt/data": "nfs4"}
MOUNTS = [SimpleNamespace(mountpoint="/mnt/data", fstype="cifs")] + [
    SimpleNamespace(mountpoint=place, fstype=system) for place, system in PLACES.items()
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/usr", "unknown (ext4)"), ("/dev/shm/a", "memory"), ("/mnt/data", "network")],
)
def test_the_innermost_and_latest_mount_tells_the_kind_of_disk(monkeypatch, tmp_path, path, kind):
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: MOUNTS)
    monkeypatch.setattr(host, "SYSTEM", tmp_path)  # which has no disks
    assert host.disk_kind(path) == kind


@pytest.fixture
def pieces(tmp_path):
    """Return 64 pieces of a file that lies on a disk."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    return [host.Piece(str(path), 16000 * number + 5, 15000) for number in range(64)]


def test_reads_that_sleep_wait_beside_each_other(pieces, monkeypatch):
    def slow(piece):
        time.sleep(0.02)
        return piece.length

    monkeypatch.setattr(host, "read_uncached", slow)
    rate = host.disk_rate(pieces, 0.5)
    assert rate.cold < 15000 / 0.02
    assert rate.cold_many > 2 * rate.cold


def test_files_on_a_disk_have_a_rate(pieces):
    rate = host.disk_rate(pieces, 0.2)
    if rate is None:
        pytest.skip("this file system has no direct access")
    assert min(rate) > 0


@pytest.mark.parametrize("num_bytes", [0, 10])
def test_a_store_of_one_record_or_of_empty_ones_has_no_rate(pieces, monkeypatch, num_bytes):
    monkeypatch.setattr(host, "read_uncached", lambda _: num_bytes)
    few = pieces[: 1 if num_bytes else 4]
    assert host.disk_rate(few, 0.1) is None
