"""What helps or hurts on this machine: compiled code, libraries, GPU, cores, memory, disk."""

import math
import os
import random
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from framework.config.targets import ROOT
from framework.diagnosis.step_rules import raise_quota, use_all_cores
from framework.measure import host
from framework.media.scale import turbojpeg
from framework.store.staging import MEMORY
from framework.system import native, stopping
from framework.system.portable import allowed_cores

GIB, GB = 1 << 30, 1e9  # of memory, of what is read in a second
WHEELS = "https://download.pytorch.org/whl/cu126"
DRIVER = Path("/proc/driver/nvidia/version")
LEAST_SHARED = 1 << 30  # bytes of /dev/shm: Docker's default is 64 MiB, a few batches of photos
FILE_BYTES = 128 << 20
BLOCK_BYTES = 8 << 20  # written and synced together
PHOTO_BYTES = 110 << 10  # the mean file of ImageNet
WRITE_S = 2.0
READ_S = 2.0
SLOW_DISK = 200e6  # bytes per second: 1,800 photos, as two cores decode (benchmarks/README.md)


class Finding(NamedTuple):
    name: str
    helps: bool
    what: str  # one sentence
    advice: str = ""  # what to type or to do; "" for nothing
    figures: Mapping[str, Any] = MappingProxyType({})  # bytes, cores, or bytes per second


def findings(place: Path) -> Iterator[Finding]:
    """Yield what is known at once, then the measured rates of the disk on which ``place`` is."""
    yield _c_functions()
    yield _turbojpeg()
    yield _gpu()
    yield _cores()
    yield _shared_memory()
    yield from _disk(place)


def _c_functions() -> Finding:
    if native.are_compiled():
        what = "are compiled: records are read, cut and scaled without Python's lock"
        return Finding("C functions", True, what)
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    steps = [] if compiler else ["install a C compiler, such as gcc"]
    if (ROOT / "hatch_build.py").is_file():
        steps.append(f"{sys.executable} {ROOT / 'hatch_build.py'}")
    else:
        steps.append("in the checkout: pip install --force-reinstall --no-deps .")
    what = "are not compiled: images and raw records take twice the time, beside Python's lock"
    return Finding("C functions", False, what, "; then ".join(steps))


def _turbojpeg() -> Finding:
    if turbojpeg() is not None:
        what = "is here: only the region of a JPEG that is wanted is decoded"
        return Finding("TurboJPEG", True, what)
    advice = "pip install turbojpeg"
    if sys.version_info >= (3, 14):
        advice = "install libturbojpeg 3 with the packages of your system: PyPI has no wheel yet"
    what = "3 is missing: JPEGs are decoded whole, also where a crop needs a part"
    return Finding("TurboJPEG", False, what, advice)


def _gpu() -> Finding:
    driver = ""
    with suppress(OSError):
        match = re.search(r"Module\D*([\d.]+)", DRIVER.read_text(encoding="ascii"))
        driver = match[1] if match else ""
    with warnings.catch_warnings():  # torch warns of a driver that is too old
        warnings.simplefilter("ignore")
        is_available = torch.cuda.is_available()
    figures = {"driver": driver or None, "cuda": torch.version.cuda}
    if is_available:
        devices = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
        first = f"{devices[0].name}, {devices[0].total_memory / GIB:.0f} GiB"
        count = f"{len(devices)} of them, " if len(devices) > 1 else ""
        what = f"is {first}, {count}driver {driver or 'unknown'}, CUDA {torch.version.cuda}"
        figures["gpus"] = [device.name for device in devices]
        return Finding("GPU", True, what, "paceline train loader=stream precision=amp", figures)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not driver:
        what, advice = "is missing: every step computes on the CPU", "paceline diagnose"
        flags = host.cpu_info("flags")
        if "amx_bf16" in flags or "avx512_bf16" in flags:
            what += ", which multiplies bfloat16 numbers"
            advice = "paceline train precision=amp"
    elif hidden is not None and not hidden.strip("-1 "):
        what, advice = f"is hidden by CUDA_VISIBLE_DEVICES={hidden}", "unset CUDA_VISIBLE_DEVICES"
    elif torch.version.cuda is None:
        what = f"is not used: driver {driver} is here, but torch was built without CUDA"
        advice = f"pip install --force-reinstall torch --index-url {WHEELS}"
    else:
        what = f"is not used: torch with CUDA {torch.version.cuda} cannot use driver {driver}"
        advice = f"install a driver for CUDA {torch.version.cuda}: https://www.nvidia.com/drivers"
    return Finding("GPU", False, what, advice, figures)


def _cores() -> Finding:
    usable, allowed, every = host.num_cores(), len(allowed_cores()), os.cpu_count() or 1
    quota, throttle = host.CGROUPS.cores(), host.CGROUPS.throttle()
    figures = {
        "num_cores": usable,
        "allowed_cores": allowed,
        "all_cores": every,
        "quota_cores": quota if quota < math.inf else None,
    }
    what, advice = f"are {usable}, all of this machine", ""
    if quota < allowed:
        what = f"are {allowed}, but a quota stops the group after the work of {quota:g}"
        if throttle is not None and throttle.throttled:
            what += f" ({throttle.throttled:,} of {throttle.periods:,} periods so far)"
        advice = raise_quota(allowed)
    elif allowed < every:
        what, advice = f"are {allowed} of {every} in the affinity mask", use_all_cores(every)
    elif (threads := host.threads_per_rank()) < usable:
        what = f"are {usable}, of which OMP_NUM_THREADS lets an operator use {threads}"
        advice = "unset OMP_NUM_THREADS"
    return Finding("cores", not advice, what, advice, figures)


def _shared_memory() -> Finding:
    if not MEMORY.is_dir():
        what = "is not on this system, so data.stage=ram cannot copy a store there"
        return Finding(str(MEMORY), False, what, "paceline train data.stage=none")
    usage = shutil.disk_usage(MEMORY)
    what = f"has {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free for worker processes"
    figures = {"free_bytes": usage.free, "total_bytes": usage.total}
    if usage.free >= LEAST_SHARED:
        return Finding(str(MEMORY), True, f"{what} and data.stage=ram", "", figures)
    advice = "docker run --shm-size=8g; or paceline train workers.kind=thread"
    if usage.total >= LEAST_SHARED:
        advice = "remove files of ended programs there; or paceline train workers.kind=thread"
    return Finding(str(MEMORY), False, what, advice, figures)


def _disk(place: Path) -> Iterator[Finding]:
    """Yield findings about the disk and the page cache, read through a file that is removed."""
    kind = host.disk_kind(str(place))
    try:
        with stopping.scratch_folder(".paceline-doctor-", str(place.absolute())) as folder:
            path = f"{folder}/file"
            num_bytes = _write(path)
            buffer, begin = bytearray(BLOCK_BYTES), time.perf_counter()
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
            cached = num_bytes / (time.perf_counter() - begin)
            places = range(0, num_bytes - PHOTO_BYTES, PHOTO_BYTES)
            draw = random.Random(0)  # noqa: S311  # no secret
            starts = draw.sample(places, len(places))
            pieces = [host.Piece(path, start, PHOTO_BYTES) for start in starts]
            rate = host.disk_rate(pieces, READ_S)
    except OSError as error:
        what = f"cannot be written in {place.absolute()}: {error.strerror}"
        yield Finding("disk", False, what, "start in a folder that you may write")
        return
    if rate is None:
        what = f"is of kind {kind}; its rate past the page cache cannot be measured here"
        yield Finding("disk", kind in ("memory", "solid state"), what, "", {"kind": kind})
    else:
        photos = rate.cold_many / PHOTO_BYTES
        what = (
            f"is of kind {kind}: {rate.cold / 1e6:,.0f} MB/s in one thread, "
            f"{rate.cold_many / 1e6:,.0f} in {host.NUM_THREADS}, {photos:,.0f} photos/s"
        )
        figures = {"kind": kind, "bytes_per_s": rate.cold, "bytes_per_s_threads": rate.cold_many}
        is_fast = rate.cold_many >= SLOW_DISK
        advice = "" if is_fast else "paceline train data.stage=ram"
        yield Finding("disk", is_fast, what, advice, figures)
    room, (limit, _) = host.available_memory_bytes(), host.CGROUPS.memory_bytes()
    what = f"reads {cached / GB:.1f} GB/s in one thread, and has room for {room / GIB:.1f} GiB"
    if limit < math.inf:
        what += f", since the control group may take {limit / GIB:.1f}"
    is_fast = rate is None or cached > rate.cold_many
    yield Finding("page cache", is_fast, what, "", {"bytes_per_s": cached, "room_bytes": room})


def _write(path: str) -> int:
    """Write a file for at most ``WRITE_S``, put it on the disk, and return its bytes."""
    block = random.Random(0).randbytes(BLOCK_BYTES)  # noqa: S311  # no secret, and not compressible
    most = min(FILE_BYTES, shutil.disk_usage(os.path.dirname(path)).free // 10)
    end = time.perf_counter() + WRITE_S
    written = 0
    with open(path, "wb") as file:
        while written < max(most, BLOCK_BYTES) and time.perf_counter() < end:
            written += file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return written
