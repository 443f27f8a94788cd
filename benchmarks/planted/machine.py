"""Causes in the machine: cores, memory and disks."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from planted.contract import Planted, Remedy, unlimited
from planted.limits import (
    beside_programs,
    cached,
    disk_speed,
    no_groups,
    no_swap,
    no_taskset,
    one_core,
    quota,
    swapping,
)
from planted.pictures import write_folder, write_raw
from planted.slow_files import mounted, no_mount
from planted.users import SMALL

CORES = len(os.sched_getaffinity(0))
MB = 1 << 20
LATENCY_MS = 10.0


def _computing(folder: Path, width: int = 4) -> list[str]:
    """Return words for a model whose operators are small: threads wait more than they compute."""
    return [
        "model=resnet9",
        f"model.width={width}",
        "model.num_classes=2",
        "batch_size=64",
        "data=hdf5",
        f"data.train={write_raw(folder / 'raw32.h5', 2048, 32)}",
        "data.val=null",
    ]


def _scaling(folder: Path) -> list[str]:
    """Return words for a model with large operators, which compute faster on more cores."""
    return _computing(folder, width=32)


def _small_scaling(folder: Path) -> list[str]:
    """Return words for a smaller model than ``_scaling``, which takes a fraction of its time.

    The time matters because a quota makes each step several times as long.
    """
    return _computing(folder, width=16)


def _crowded(folder: Path) -> list[str]:
    return [*_computing(folder), "workers.num=16"]


def _opencv(folder: Path, threads: int) -> list[str]:
    return [
        *SMALL,
        "batch_size=32",
        "data=folder",
        f"data.train={write_folder(folder / 'photos', 640, 320, 400)}",
        "data.source._target_=planted.opencv_user.blurred_source",
        "+data.source.size=64",
        f"+data.source.threads={threads}",
        f"workers.num={CORES}",
        "workers.kind=thread",
    ]


def _large(folder: Path) -> list[str]:
    large = write_folder(folder / "many", 12_000, 600, 800)
    words = [*SMALL, "batch_size=16", "data=folder", f"data.train={large}", f"workers.num={CORES}"]
    return [*words, "transform=resize", "transform.size=[64,64]"]


def _hoarding(folder: Path) -> list[str]:
    raw = write_raw(folder / "raw.h5", 2048, 64)
    words = [*SMALL, "batch_size=64", "data=hdf5", f"data.train={raw}"]
    return [*words, "transform=function", "transform.function._target_=planted.hoarder.look_up"]


def _mounted_photos(folder: Path) -> list[str]:
    write_folder(folder / "far", 192, 320, 400)
    place = folder / "mounted"
    return [*SMALL, "batch_size=16", "data=folder", f"data.train={place}", f"workers.num={CORES}"]


@contextmanager
def _mount(folder: Path) -> Generator[list[str]]:
    with mounted(folder / "far", folder / "mounted", LATENCY_MS):
        yield []


PLANTED = (
    Planted(
        "threads",
        "too_many_threads",
        "16 OpenMP threads and 16 workers",
        _crowded,
        environment={"OMP_NUM_THREADS": "16"},
    ),
    Planted(
        "opencv",
        "opencv_threads",
        "16 OpenCV threads, which share calls that are too small",
        lambda folder: _opencv(folder, 16),
        Remedy(lambda folder: _opencv(folder, 0)),
    ),
    Planted(
        "beside",
        "other_programs",
        "another program on every core",
        # Threads that share small operators beside other programs mostly wait for each other: the
        # same set-up then computes 300 or 1,200 records a second.
        _small_scaling,
        Remedy(_small_scaling, around=unlimited),
        around=beside_programs,
    ),
    Planted(
        "beside_one",
        "other_programs",
        "another program on every core, beside a model that computes in one thread",
        _computing,
        Remedy(_computing, around=unlimited),
        environment={"OMP_NUM_THREADS": "1"},
        around=beside_programs,
    ),
    Planted(
        "quota",
        "cpu_quota",
        "a CPU quota of a quarter of the cores",
        _small_scaling,
        Remedy(_small_scaling, around=unlimited),
        around=quota(CORES / 4),
        obstacle=no_groups,
    ),
    Planted(
        "affinity",
        "few_cores",
        "an affinity mask with one core",
        _scaling,
        Remedy(_scaling, around=unlimited),
        around=one_core,
        obstacle=no_taskset,
    ),
    Planted(
        "swap",
        "swap",
        "a table that needs 500 MB more than the memory",
        _hoarding,
        Remedy(_hoarding, around=unlimited),
        around=swapping(900 * MB),
        obstacle=no_swap,
    ),
    Planted(
        "disk",
        "cold_disk",
        "images on a disk of 20 MB/s, larger than memory",
        _large,
        Remedy(_large, around=lambda folder: cached(folder / "many")),
        around=disk_speed(20 * MB, 1200 * MB),
        obstacle=no_groups,
    ),
    Planted(
        "network",
        "network_disk",
        "images on a file system that answers after 10 ms",
        _mounted_photos,
        around=_mount,
        obstacle=no_mount,
    ),
)
