"""Measure each part of a configured run, alone and together, and describe its machine and store."""

import hashlib
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count, repeat
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from framework.cli.arguments import block_words
from framework.commands.diagnose.device_syncs import measure_syncs
from framework.commands.diagnose.facts import (
    TINY,
    DiagnosisFacts,
    Machine,
    Rates,
    Settings,
    Storage,
)
from framework.commands.diagnose.host_python import measure_python
from framework.commands.diagnose.measure_machine import measure_machine
from framework.commands.diagnose.measure_run import measure_run
from framework.config.targets import data_name, split_of, val_sets
from framework.contracts.batch import leaves, move, pin, tensors
from framework.contracts.data import Source
from framework.contracts.records import Field, RecordStore
from framework.contracts.slow_records import slow_block
from framework.contracts.span import waiting_share
from framework.data.dataset import DatasetSource
from framework.data.requests import Request
from framework.data.source import StoreSource, WorkerSource
from framework.measure.disk import disk_kind
from framework.measure.host import available_memory_bytes, cpu_info, num_cores, threads_per_rank
from framework.measure.machine_watch import MachineUse, MachineWatch
from framework.measure.statistics import median
from framework.media.decode import image_size
from framework.media.header import BadImage, read_header
from framework.order.batches import Order, spread
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Store
from framework.store.kinds import RAGGED
from framework.store.lmdb_store import LMDBStore
from framework.store.open_store import ShardedStore, files_of
from framework.store.staging import cached_share
from framework.system.native import limit_threads
from framework.trials.probe import Config, Probe, Rate

NUM_SAMPLES = 64  # records whose size is looked at
SLICE = 16  # images prepared at a time in one thread, so that a second holds several slices
GRACE_S = 1.0  # how much longer than planned a measurement of slow steps may take
NUM_WINDOWS = 5
TURNS = 2
SLOW_STEPS = 5
GROWTH = 8  # a tiny batch is compared with one so many times as large, another with half of it
UNCHANGED = "framework.transform.function.unchanged"
FORMS: dict[type, str] = {FolderStore: "folder", HDF5Store: "hdf5", LMDBStore: "lmdb"}
# Shares of the given seconds. The burn-in is added to most of the others.
BURN_IN = 0.03
READ = 0.05
PREPARE = 0.06
TWO = 0.05
PLAIN = 0.04
LOADER = 0.12
COMPUTE = 0.18
OTHER = 0.08
WHOLE = 0.18

Say = Callable[[str], None]
Action = Callable[[Tensor], object]
# What takes many more steps is left out if slow steps have used up so many times the seconds.
LATEST = 2.5


class Setting(NamedTuple):
    """A configuration that can run, and the user's packages that it may import."""

    config: Config
    allowed: tuple[str, ...]
    threads: int | None = None  # of torch, for an operator; None: as many as a run uses

    def probe(self, num_windows: int = NUM_WINDOWS, epoch: int = 1) -> Probe:
        """Return a new probe whose measurements also end if a step takes seconds.

        Epoch 0 is read to measure the parts alone.
        """
        torch.set_num_threads(self.threads or threads_per_rank())
        config = {**self.config, "clock": "full"}
        return Probe(config, self.allowed, num_windows, GRACE_S, epoch)


def gather_facts(setting: Setting, seconds: float, say: Say) -> DiagnosisFacts:
    """Measure and describe a run in about ``seconds``. ``say`` announces each measurement."""
    start = time.perf_counter()
    load = os.getloadavg()[0]
    with closing(setting.probe()) as probe:
        storage, alone = _storage_and_rates(setting, probe, seconds, say)
        together, use = _together(probe, seconds, say)
        rates = Rates(**together, copy=_copy_rate(probe), **alone)
        machine = machine_of(probe.assembly.device, load)
        convolutional = not probe.config["channels_last"] and _has_convolutions(probe)
        subjects = _subjects(probe, seconds, use, start + LATEST * seconds, say)
        settings = settings_of(probe)
        return DiagnosisFacts(machine, settings, rates, storage, convolutional, **subjects)


def _storage_and_rates(
    setting: Setting, probe: Probe, seconds: float, say: Say
) -> tuple[Storage | None, dict[str, Any]]:
    """Describe how records are stored, and measure the rates of reading and preparing alone."""
    source = probe.assembly.train_source
    if isinstance(source, StoreSource):
        # First, since reading fills the page cache.
        storage = storage_of(source.store, probe.config)
        return storage, _alone(setting, source, seconds, say)
    if isinstance(source, DatasetSource):
        storage = storage_of_items(source, probe.config)
        say("making items")
        return storage, {"prepare": _rate_of_items(source, PREPARE * seconds)}
    return None, {}


def _subjects(
    probe: Probe, seconds: float, use: MachineUse, latest: float, say: Say
) -> dict[str, Any]:
    """Measure the subjects. What takes many steps is left out once ``latest`` has passed."""

    def has_time(what: str) -> bool:
        is_early = time.perf_counter() <= latest
        if not is_early:
            say(f"no time left for {what}")
        return is_early

    tries = has_time("other numbers of threads, other cores and the disk")
    measured: dict[str, Any] = {
        "on_machine": measure_machine(probe, seconds, use, tries, say),
        "python": measure_python(probe, seconds, say),
        "syncs": measure_syncs(probe, seconds, say),
        "slow_records": slow_block(probe.assembly.train_source, probe.assembly.waits),
    }
    if has_time("validating, saving and reporting"):
        measured["on_run"] = measure_run(probe, seconds, say)
    return measured


def _together(probe: Probe, seconds: float, say: Say) -> tuple[dict[str, Any], MachineUse]:
    """Measure the loader, computing and training.

    Return fields of `Rates`, and how the machine was used while the run trained.
    """
    burn_in_s = BURN_IN * seconds
    say("workers and loader")
    loader = probe.loader(LOADER * seconds, burn_in_s)
    num_records = len(probe.batch()["index"])
    computes: list[Rate] = []
    wholes: list[Rate] = []
    # Slow steps get one turn: each takes as long as several steps.
    batch_s = num_records / loader.records_per_s
    uses: list[MachineUse] = []
    watch = MachineWatch()
    num_turns = TURNS if WHOLE * seconds > SLOW_STEPS * batch_s else 1
    for _ in range(num_turns):  # in turn, because each is judged by the other
        say("computing alone")
        computes.append(probe.compute(COMPUTE * seconds / num_turns, burn_in_s))
        say("training")
        watch.lap()
        wholes.append(probe.train(WHOLE * seconds / num_turns, burn_in_s))
        uses.append(watch.lap())
    compute = _pooled(computes)
    whole = _pooled(wholes)
    say("computing another batch size")
    other = None
    other_size = num_records * GROWTH if num_records < TINY else num_records // 2
    with suppress(torch.OutOfMemoryError):
        other = probe.compute(OTHER * seconds, burn_in_s, other_size).records_per_s
    rates = {
        "loader": loader.records_per_s,
        "compute": compute.records_per_s,
        "compute_cores": compute.busy_cores,
        "other": other,
        "other_size": other_size,
        "whole": whole.records_per_s,
        "wait": waiting_share(whole.spans_s) or 0.0,
        "spans_s": whole.spans_s,
        "compute_spans_s": compute.spans_s,
        "spread": whole.spread,
    }
    return rates, uses[-1]


def _pooled(rates: list[Rate]) -> Rate:
    """Return one rate with the windows of all."""
    windows = tuple(window for rate in rates for window in rate.windows)
    names = {name for rate in rates for name in rate.spans_s}
    spans_s = {name: fmean(rate.spans_s.get(name, 0.0) for rate in rates) for name in names}
    return Rate(windows, spans_s, fmean(rate.busy_cores for rate in rates))


def _alone(setting: Setting, source: StoreSource, seconds: float, say: Say) -> dict[str, Any]:
    """Measure reading, decoding and transforming in one thread; return fields of `Rates`.

    It is a thread like a worker's. The main thread would share its work among all cores.
    """
    store = source.store
    views = tuple(source.read.views)
    size = source.order.batch_size
    has_images = any(field.encoding == "image" for field in store.manifest.fields.values())
    if has_images or source.read.transform.function is not None:
        size = SLICE
    indices = _indices(source.order, size)
    say("reading")
    rates: dict[str, Any] = {}
    rates["read"], rates["read_cores"] = _rate_of_one(
        lambda part: touch(store.read(part, views)), indices, READ * seconds
    )
    say("decoding and transforming")
    prepare = _preparing(source)
    system_s = os.times().system
    start = time.perf_counter()
    rates["prepare"], rates["prepare_cores"] = _rate_of_one(prepare, indices, PREPARE * seconds)
    system_s = os.times().system - system_s
    rates["prepare_system_cores"] = system_s / (time.perf_counter() - start)
    if num_cores() > 1:
        rates["prepare_two"] = _rate_of_two(prepare, indices, TWO * seconds)
        rates["two_cores"] = _speedup_of_two(TWO * seconds / 2)
    transform = setting.config["transform"]
    if source.read.transform.function is not None and "geometry" in transform:
        transform = {**transform, "function": {"_target_": UNCHANGED, "_partial_": True}}
        config = {**setting.config, "transform": transform}
        plain = setting._replace(config=config, allowed=(*setting.allowed, UNCHANGED))
        with closing(plain.probe()) as probe:
            prepare = _preparing(probe.assembly.train_source)
            indices = _indices(source.order, SLICE)
            rates["prepare_plain"] = _rate_of_one(prepare, indices, PLAIN * seconds)[0]
    return rates


def _rate_of_items(source: DatasetSource, seconds: float) -> float:
    """Return records per second of this thread. No other one may share the Dataset."""
    indices = _indices(source.order, SLICE)
    return _rate(lambda part: source.read(Request(0, part, training=True)), indices, seconds)[0]


def _preparing(source: Source) -> Action:
    assert isinstance(source, StoreSource)
    return lambda part: source.read(Request(0, part, training=True))


def _indices(order: Order, size: int) -> Iterator[Tensor]:
    """Yield the indices of epoch after epoch, at most ``size`` at a time."""
    for epoch in count():
        for share in order.shares(epoch):
            yield from share.indices.split(size)


def _rate(action: Action, indices: Iterator[Tensor], seconds: float) -> tuple[float, float]:
    """Return records and CPU seconds per second. The first call opens files and does not count."""
    action(next(indices))
    start = time.perf_counter()
    cpu_s = time.process_time()
    num_records = 0
    while time.perf_counter() - start < seconds or not num_records:
        part = next(indices)
        action(part)
        num_records += len(part)
    took_s = time.perf_counter() - start
    return num_records / took_s, (time.process_time() - cpu_s) / took_s


def _rate_of_one(action: Action, indices: Iterator[Tensor], seconds: float) -> tuple[float, float]:
    """Return what ``_rate`` returns, measured in a thread like a worker's."""
    with ThreadPoolExecutor(1, "paceline-diagnose", limit_threads, (1,)) as pool:
        return pool.submit(_rate, action, indices, seconds).result()


def _rate_of_two(action: Action, indices: Iterator[Tensor], seconds: float) -> float:
    """Return records per second of ``action`` in two threads together."""
    lock = threading.Lock()

    def locked() -> Iterator[Tensor]:
        while True:
            with lock:
                part = next(indices)
            yield part

    with ThreadPoolExecutor(2, "paceline-diagnose", limit_threads, (1,)) as pool:
        jobs = [pool.submit(_rate, action, locked(), seconds) for _ in range(2)]
        return sum(job.result()[0] for job in jobs)


def _speedup_of_two(seconds: float) -> float:
    """Return how many times faster two threads without a lock are, on cores as busy as these."""
    data = bytes(1 << 20)
    parts = repeat(torch.zeros(1))

    def work(_: Tensor) -> None:
        hashlib.sha256(data)

    return _rate_of_two(work, parts, seconds) / _rate_of_one(work, parts, seconds)[0]


def touch(records: dict[str, Any]) -> int:
    """Return the bytes of the records and copy each, since mapped memory is read only if used."""
    total = 0
    for values in records.values():
        if isinstance(values, Tensor):
            total += values.nbytes
        else:
            total += sum(len(memoryview(value).tobytes()) for value in values)
    return total


def _copy_rate(probe: Probe) -> float | None:
    """Return records per second from page-locked memory to the device; None without CUDA."""
    device = probe.assembly.device
    if device.type != "cuda":
        return None
    batch = next(probe.assembly.train_source.batches(0)).batch
    host = pin({name: tensor.cpu() for name, tensor in tensors(batch).items()})
    times_s: list[float] = []
    for _ in range(13):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        copies = move(host, device)
        torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - start)
        del copies
    return len(host["index"]) / median(times_s[3:])


def _has_convolutions(probe: Probe) -> bool:
    """Return whether the model has 2-d convolutions in channels-first layout."""
    model: nn.Module = probe.assembly.build("model")
    return any(
        isinstance(module, nn.Conv2d)
        and not module.weight.is_contiguous(memory_format=torch.channels_last)
        for module in model.modules()
    )


def machine_of(device: torch.device, load: float) -> Machine:
    flags = cpu_info("flags")
    gpu = None
    bf16 = "amx_bf16" in flags or "avx512_bf16" in flags
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        bf16 = torch.cuda.is_bf16_supported()
    return Machine(num_cores(), available_memory_bytes(), gpu, bf16, load)


def settings_of(probe: Probe) -> Settings:
    config = probe.config
    source = probe.assembly.train_source
    transform: Any = probe.assembly.build("transform")
    workers = config["workers"]["num"] or 0
    kind = config["workers"]["kind"] or "thread"
    if isinstance(source, WorkerSource):
        workers = source.workers.num
        kind = source.workers.kind
    size: Any = transform.size and tuple(map(int, transform.size))
    return Settings(
        batch_size=len(next(iter(source.order.shares(0))).indices),
        workers=workers,
        kind=kind,
        loader=_module(config["loader"]),
        precision=_module(config["precision"]),
        transform=_module(config["transform"]),
        size=size,
        has_function=transform.function is not None or isinstance(source, DatasetSource),
        augment=_module(config["augment"]),
        shuffle=config["shuffle"],
        block=config["order"].get("block_records"),
        staged=config["data"].get("stage") in ("ram", "device"),
        compiled=config["compile"],
        select=config["select"],
    )


def _module(block: Config) -> str:
    return str(block["_target_"]).split(".")[-2]


def storage_of(store: RecordStore, config: Config) -> Storage:
    """Describe the store by a sample. Reading it before would change what is cached."""
    path = str(config["data"]["train"])
    val = {split_of(name): str(given) for name, given in val_sets(config["data"]).items()}
    num_records = store.manifest.num_records
    first = store.first if isinstance(store, ShardedStore) else store
    form = FORMS.get(type(first), "other")
    indices = spread(num_records, min(NUM_SAMPLES, num_records))
    files = [file for file in files_of(path) if os.path.isfile(file)]
    if form == "folder":
        files = [store.name(index) for index in indices.tolist()]
    cached = cached_share(files)
    records = store.read(indices)
    return Storage(
        path=path,
        form=form,
        num_records=num_records,
        record_bytes=touch(records) / len(indices),
        disk=disk_kind(path) if os.path.exists(path) else "unknown (no such path)",
        cached=cached,
        chunk_records=first.chunk_records if isinstance(first, HDF5Store) else None,
        target=free_target(path),
        val=val,
        val_targets={split: free_target(given) for split, given in val.items()},
        follow_links=config["data"].get("follow_links"),
        free_bytes=_free_bytes(path),
        **_pixels(store.manifest.fields, records),
    )


def _free_bytes(place: str) -> float:
    """Return the free bytes beside ``place``; infinity if it is no path."""
    try:
        return float(shutil.disk_usage(Path(place).absolute().parent).free)
    except OSError:
        return math.inf


def storage_of_items(source: DatasetSource, config: Config) -> Storage:
    """Describe a Dataset by a sample."""
    data = config["data"]
    sample = source.read(Request(0, next(_indices(source.order, SLICE)), training=False))
    indices = sample.pop("index")
    form = source.read.form
    words = ""
    others = [value for name, value in sample.items() if name not in form.ragged]
    if form.collate is None and all(map(_is_packed, others)):
        words = f"paceline pack input=dataset 'input.dataset={block_words(data['train'])}'"
        if form.names is not None:
            words += f" 'input.fields={block_words(list(form.names))}'"
        if form.ragged:
            words += f" 'input.kinds={block_words(dict.fromkeys(form.ragged, RAGGED))}'"
        words += " output.path=packed.h5"
    return Storage(
        path=data_name(data["train"]),
        form="dataset",
        num_records=source.order.num_records,
        record_bytes=sum(part.nbytes for part in leaves(sample)) / len(indices),
        encoding="raw",
        disk="unknown",
        cached=None,
        pack_words=words,
        draws=source.draws,
    )


def _is_packed(column: Any) -> bool:
    """Return whether a store has such a field: numbers or texts."""
    return isinstance(column, Tensor) or all(isinstance(value, str) for value in column)


def _pixels(fields: Mapping[str, Field], records: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the images in ``records``, as fields of `Storage`."""
    name = next((name for name in fields if fields[name].encoding == "image"), None)
    if name is None:
        return {"encoding": "raw", **_raw_pixels(fields)}
    known: dict[str, Any] = {"encoding": "image", "channels": fields[name].channels or 3}
    sizes: list[tuple[int, int]] = []
    codecs: Counter[str] = Counter()
    for data in records[name]:
        with suppress(BadImage):
            sizes.append(image_size(data))
            codecs[read_header(data).format] += 1
    if sizes:
        known["codec"] = codecs.most_common(1)[0][0]
        height, width = np.median(sizes, axis=0).astype(int).tolist()
        known |= {"image_size": (height, width), "even": len(set(sizes)) == 1}
    return known


def _raw_pixels(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return what is known of the first array of pixels, as fields of `Storage`."""
    for field in fields.values():
        if field.encoding == "raw" and field.kind == "image":
            height, width = field.shape[:2] if field.interleaved else field.shape[1:]
            return {"channels": field.channels or 3, "image_size": (height, width), "even": True}
    return {}


def free_target(path: str) -> str:
    """Return a free path: ``path`` without its ending, and with -packed, -packed2, ..."""
    place = Path(path)
    if place.suffix in (".h5", ".lmdb"):
        place = place.with_suffix("")
    for number in ("", *range(2, 1000)):
        target = f"{place}-packed{number}"
        if not any(Path(target + ending).exists() for ending in ("", ".h5", ".lmdb")):
            return target
    return ""
