"""Each part of a configured run measured, alone and together, and what it is made of: the facts of a diagnosis."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from framework.commands.diagnose.disk_speed import disk_kind
from framework.commands.diagnose.facts import DiagnosisFacts, Machine, Rates, Settings, Storage
from framework.commands.probe import Config, Probe, Rate
from framework.contracts.batch import Batch, pin, tensors
from framework.contracts.records import RecordStore
from framework.data.reader import BatchReader, Request
from framework.data.source import StoreSource
from framework.image.decode import image_size
from framework.image.header import BadImage
from framework.measure.host import available_memory_bytes, cpu_info, num_cores
from framework.measure.statistics import median
from framework.order import spread
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.store.page_cache import cached_share
from framework.store.shards import ShardedStore

NUM_SAMPLES = 64  # records looked at for their size
SLICE = 16  # records at a time in this thread: small enough for a second to hold several
GRACE_S = 2.0  # beyond its time, where a step takes seconds
NUM_WINDOWS = 5
TURNS = 2
BURN_IN = 0.03  # of the seconds given
FORMS: dict[type, str] = {FolderStore: "folder", HDF5Store: "hdf5", LMDBStore: "lmdb"}
SHARES = {
    "read": 0.05,
    "prepare": 0.06,
    "two": 0.05,
    "plain": 0.04,
    "loader": 0.12,
    "compute": 0.18,
    "half": 0.08,
    "whole": 0.18,
}


class Setting(NamedTuple):
    """A configuration that can be run, its own packages allowed."""

    config: Config
    allowed: tuple[str, ...]

    def probe(self, num_windows: int = NUM_WINDOWS) -> Probe:
        """A fresh one, whose measurements end also where a step takes seconds."""
        return Probe({**self.config, "clock": True}, self.allowed, num_windows, GRACE_S)


def gather(setting: Setting, seconds: float, say: Callable[[str], None]) -> DiagnosisFacts:
    """All facts, in about ``seconds``. ``say`` is told what is being measured."""
    load = os.getloadavg()[0]
    probe = setting.probe()
    try:
        source = probe.assembly.train_source
        store, reader = (
            (source.store, source.read) if isinstance(source, StoreSource) else (None, None)
        )
        storage = (
            None if store is None else storage_of(store, probe.config)
        )  # first: reading would warm the cache
        alone = _alone(setting, probe, store, reader, seconds, say)
        together = _together(probe, seconds, say)
        compute, whole = together["compute"], together["whole"]
        rates = Rates(
            compute.records_per_s,
            whole.records_per_s,
            together["loader"].records_per_s,
            compute.busy_cores,
            together["half"].records_per_s if "half" in together else None,
            copy=_copy_rate(probe),
            wait=waited(whole.spans_s),
            spread=whole.spread,
            **alone,
        )
        device = probe.assembly.device
        settings = settings_of(probe)
        model: nn.Module = probe.assembly.build("model")
        convolutional = not probe.config["channels_last"] and any(
            isinstance(m, nn.Conv2d)
            and not m.weight.is_contiguous(memory_format=torch.channels_last)
            for m in model.modules()
        )
        return DiagnosisFacts(machine_of(device, load), settings, rates, storage, convolutional)
    finally:
        probe.close()


def waited(spans_s: dict[str, float]) -> float:
    """The share of a step in which nothing could go on for want of data: on CUDA the device's idle time, which the host's waiting overlaps."""
    own_s = {
        name: seconds
        for name, seconds in spans_s.items()
        if name != "wait" or "idle" not in spans_s
    }
    return own_s.get("idle", own_s.get("wait", 0.0)) / (sum(own_s.values()) or 1.0)


def _together(probe: Probe, seconds: float, say: Callable[[str], None]) -> dict[str, Rate]:
    """Loader, computation, and whole steps: the source's workers and the device are in it. The last two in turn, since each is judged by
    the other.
    """
    say("workers and loader")
    found = {"loader": probe.loader(SHARES["loader"] * seconds, BURN_IN * seconds)}
    num_records = len(probe.batch()["index"])
    turns: dict[str, list[Rate]] = {"compute": [], "whole": []}
    for _ in range(TURNS):
        say("computing alone")
        turns["compute"].append(
            probe.compute(SHARES["compute"] * seconds / TURNS, BURN_IN * seconds)
        )
        say("the whole")
        turns["whole"].append(probe.train(SHARES["whole"] * seconds / TURNS, BURN_IN * seconds))
    if num_records > 1:
        found["half"] = probe.compute(SHARES["half"] * seconds, BURN_IN * seconds, num_records // 2)
    return {**found, **{part: _pooled(rates) for part, rates in turns.items()}}


def _pooled(rates: list[Rate]) -> Rate:
    """All windows of several measurements of the same."""
    windows = tuple(window for rate in rates for window in rate.windows)
    names = {name for rate in rates for name in rate.spans_s}
    spans_s = {name: fmean(rate.spans_s.get(name, 0.0) for rate in rates) for name in names}
    return Rate(windows, spans_s, fmean(rate.busy_cores for rate in rates))


def _alone(
    setting: Setting,
    probe: Probe,
    store: RecordStore | None,
    reader: BatchReader | None,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Reading, decoding and transforming in this thread: fields of ``Rates``. {} where the source is not one of stores."""
    if store is None:
        return {}
    order, views = probe.assembly.train_source.order, () if reader is None else tuple(reader.views)
    say("reading")
    encoded = any(field.encoding == "image" for field in store.manifest.fields.values())
    indices = _indices(order, SLICE if encoded else order.batch_size)
    read, read_cores = _rate(
        lambda part: touch(store.read(part, views)), indices, SHARES["read"] * seconds
    )
    found: dict[str, Any] = {"read": read, "read_cores": read_cores}
    if reader is None:
        return found

    def prepare(part: Tensor) -> Batch:
        return reader(Request(0, part, training=True))

    say("decoding and transforming")
    found["prepare"], _ = _rate(prepare, indices, SHARES["prepare"] * seconds)
    if num_cores() > 1:
        found["prepare_two"] = _two(prepare, indices, SHARES["two"] * seconds)
        found["two_cores"] = _two_cores(SHARES["two"] * seconds / 2)
    if reader.transform.function is not None and "geometry" in setting.config["transform"]:
        found["prepare_plain"] = _plain_rate(setting, seconds)
    return found


def _plain_rate(setting: Setting, seconds: float) -> float | None:
    """Preparing without the transform's function: with its geometry alone."""
    config = {**setting.config, "transform": setting.config["transform"]["geometry"]}
    probe = setting._replace(config=config).probe()
    try:
        reader: Any = probe.assembly.train_source.read  # type: ignore[attr-defined]
        order = probe.assembly.train_source.order
        return _rate(
            lambda part: reader(Request(0, part, training=True)),
            _indices(order, SLICE),
            SHARES["plain"] * seconds,
        )[0]
    finally:
        probe.close()


def _indices(order: Any, size: int) -> Iterator[Tensor]:
    """The order's records, at most ``size`` at a time, epoch after epoch."""
    epoch = 0
    while True:
        for share in order.shares(epoch):
            yield from share.indices.split(size)
        epoch += 1


def _rate(
    action: Callable[[Tensor], object], indices: Iterator[Tensor], seconds: float
) -> tuple[float, float]:
    """(records per second, CPU seconds per second) of ``action``; its first call, which opens files, is not counted."""
    action(next(indices))
    start, cpu_s, count = time.perf_counter(), time.process_time(), 0
    while (now := time.perf_counter()) - start < seconds or not count:
        part = next(indices)
        action(part)
        count += len(part)
    now = time.perf_counter()
    return count / (now - start), (time.process_time() - cpu_s) / (now - start)


def _two(action: Callable[[Tensor], object], indices: Iterator[Tensor], seconds: float) -> float:
    """Records per second of ``action`` in two threads together."""
    lock, rates = threading.Lock(), list[float]()

    def taken() -> Iterator[Tensor]:
        while True:
            with lock:
                part = next(indices)
            yield part

    def run() -> None:
        rates.append(_rate(action, taken(), seconds)[0])

    pair = [threading.Thread(target=run, name="paceline-diagnose") for _ in range(2)]
    for thread in pair:
        thread.start()
    for thread in pair:
        thread.join()
    return sum(rates)


def _two_cores(seconds: float) -> float:
    """How many times as much two threads do as one, of work that gives Python's lock away: what these cores have to give just now."""
    data, part = bytes(1 << 20), torch.zeros(1)

    def hash_some(_: Tensor) -> None:
        hashlib.sha256(data)

    return _two(hash_some, repeat(part), seconds) / _rate(hash_some, repeat(part), seconds)[0]


def touch(records: dict[str, Any]) -> int:
    """Bytes of the records, each of which is copied: a view of mapped memory is not read before somebody looks."""
    total = 0
    for values in records.values():
        if isinstance(values, Tensor):
            total += values.numel() * values.element_size()
            continue
        total += sum(
            len(np.ascontiguousarray(v).tobytes()) if isinstance(v, np.ndarray) else len(bytes(v))
            for v in values
        )
    return total


def _copy_rate(probe: Probe) -> float | None:
    """Records per second from page-locked memory to the device. None where the device is the host."""
    device = probe.assembly.device
    if device.type != "cuda":
        return None
    host: Batch = pin(
        {
            name: one.cpu()
            for name, one in tensors(next(probe.assembly.train_source.batches(0)).batch).items()
        }
    )
    for _ in range(3):
        _copied(host, device)
    times_s = sorted(_copied(host, device) for _ in range(10))
    return len(host["index"]) / median(times_s)


def _copied(host: Batch, device: torch.device) -> float:
    """Seconds of one copy."""
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    there = [tensor.to(device, non_blocking=True) for tensor in host.values()]
    torch.cuda.synchronize(device)
    del there
    return time.perf_counter() - start


def machine_of(device: torch.device, load: float) -> Machine:
    if device.type == "cuda":
        return Machine(
            num_cores(),
            available_memory_bytes(),
            torch.cuda.get_device_name(device),
            torch.cuda.is_bf16_supported(),
            load,
        )
    flags = cpu_info("flags")
    has_bfloat16 = "amx_bf16" in flags or "avx512_bf16" in flags
    return Machine(num_cores(), available_memory_bytes(), None, has_bfloat16, load)


def settings_of(probe: Probe) -> Settings:
    """What was chosen, with the number of workers that came of it."""
    config, source = probe.config, probe.assembly.train_source
    transform = probe.assembly.build("transform")
    typed_workers = config["workers"]["num"] or 0
    return Settings(
        len(next(iter(source.order.shares(0))).indices),
        source.workers.num if isinstance(source, StoreSource) else typed_workers,
        config["workers"]["kind"],
        _module(config["loader"]),
        _module(config["precision"]),
        _module(config["transform"]),
        None if transform.size is None else (int(transform.size[0]), int(transform.size[1])),
        transform.function is not None,
        _module(config["augment"]),
        config["shuffle"],
        config["order"]["block_records"],
        config["data"].get("stage") in ("ram", "device"),
        config["compile"],
    )


def _module(block: Config) -> str:
    return str(block["_target_"]).split(".")[-2]


def storage_of(store: RecordStore, config: Config) -> Storage:
    """What the store holds, by a sample of its records. Before anything was read: its share in the page cache is told as it is."""
    path, manifest, one = str(config["data"]["train"]), store.manifest, _one(store)
    form = FORMS.get(type(one), "other")
    indices = spread(manifest.num_records, min(NUM_SAMPLES, manifest.num_records))
    files = [store.name(index) for index in indices.tolist()] if form == "folder" else _files(path)
    cached = cached_share(files) if files else None
    disk = disk_kind(path) if Path(path).exists() else "unknown (no such path)"
    records = store.read(indices)
    encoded = next(
        (name for name, field in manifest.fields.items() if field.encoding == "image"), None
    )
    raw = next(
        (field for field in manifest.fields.values() if field.encoding == "raw" and field.channels),
        None,
    )
    sizes = _sizes(records[encoded]) if encoded is not None else []
    channels = (manifest.fields[encoded] if encoded else raw).channels if encoded or raw else None  # type: ignore[union-attr]
    val = config["data"].get("val")
    return Storage(
        path,
        form,
        manifest.num_records,
        touch(records) / len(indices),
        "image" if encoded is not None else "raw",
        disk,
        cached,
        (int(median(h for h, _ in sizes)), int(median(w for _, w in sizes))) if sizes else None,
        channels or 3,
        len(set(sizes)) == 1,
        one.chunk_records if isinstance(one, HDF5Store) else None,
        free_target(path),
        None if val is None else str(val),
        "" if val is None else free_target(str(val)),
    )


def _one(store: RecordStore) -> RecordStore:
    """The store, or the first of one that is a directory."""
    return store.first if isinstance(store, ShardedStore) else store


def _files(path: str) -> list[str]:
    place = Path(path)
    if not place.exists():
        return []
    return (
        [str(file) for file in sorted(place.iterdir()) if file.is_file()]
        if place.is_dir()
        else [path]
    )


def _sizes(images: list[Any]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for data in images:
        try:
            found.append(image_size(data))
        except BadImage:
            continue
    return found


def free_target(path: str) -> str:
    """``path`` without its ending, and with ``-packed``, ``-packed2``, ... so that no store of that name is there."""
    place = Path(path)
    stem = str(place.with_suffix("")) if place.suffix in (".h5", ".lmdb") else str(place)
    for number in range(1, 1000):
        found = f"{stem}-packed{number if number > 1 else ''}"
        if not any(Path(found + ending).exists() for ending in ("", ".h5", ".lmdb")):
            return found
    return ""
