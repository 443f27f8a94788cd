import math
import mmap
import os

import pytest

from framework.measure import host
from framework.measure.cgroup import Cgroups
from framework.measure.host import (
    available_memory_bytes,
    cores_per_rank,
    num_cores,
    peak_rss_bytes,
    rss_bytes,
    threads_per_rank,
    total_memory_bytes,
)


def test_the_peak_of_memory_never_falls_and_sees_what_was_held():
    before = peak_rss_bytes()
    # in pages of its own: malloc may have free ones from other tests
    with mmap.mmap(-1, before + (64 << 20) - rss_bytes(os.getpid())) as held:
        held.write(b"x" * len(held))
    assert peak_rss_bytes() >= before + (32 << 20)


def test_cores_are_those_this_process_may_run_on():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert num_cores() == len(before)


@pytest.mark.parametrize(
    ("quota", "cores"), [(math.inf, 4), (0.2, 1), (1.5, 2), (2.0, 2), (64.0, 4)]
)
def test_a_containers_share_of_time_limits_the_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(host.Cgroups, "cores", lambda _: quota)
    assert num_cores() == cores


@pytest.mark.parametrize(("ranks", "cores"), [(None, 4), ("1", 4), ("2", 2), ("3", 1), ("9", 1)])
def test_the_ranks_of_a_machine_share_its_cores(monkeypatch, ranks, cores):
    monkeypatch.setattr(host, "num_cores", lambda: 4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores_per_rank() == cores


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({}, 6),
        ({"OMP_NUM_THREADS": "2,1"}, 2),
        ({"OMP_NUM_THREADS": "0"}, 6),
        ({"OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}, 3),
    ],
)
def test_threads_are_what_somebody_has_set_or_the_cores(monkeypatch, environment, threads):
    for name in ("OMP_NUM_THREADS", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(host, "num_cores", lambda: 6)
    assert threads_per_rank() == threads


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "CGROUPS", Cgroups(tmp_path, tmp_path / "own"))
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    return tmp_path


def test_a_containers_limit_counts_less_what_it_holds_but_for_files(container):
    assert total_memory_bytes() == 1_000_000
    assert available_memory_bytes() == 300_000
    (container / "memory.stat").write_text("anon 100\ninactive_file 200000\n")
    assert available_memory_bytes() == 500_000


def refused(*_, **__):
    raise OSError
