"""Measure each part of a configured run, alone and together, and describe its store."""

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
from framework.commands.diagnose.measure_machine import measure_machine
from framework.commands.diagnose.measure_run import measure_run
from framework.commands.diagnose.measure_step import measure_python, measure_syncs
from framework.config.targets import data_name, split_of, val_sets
from framework.contracts.batch import leaves, move, pin, tensors
from framework.contracts.data import Source
from framework.contracts.records import Field, RecordStore
from framework.contracts.span import waiting_share
from framework.contracts.waits import slow_block
from framework.data.dataset import DatasetSource
from framework.data.requests import Request
from framework.data.source import StoreSource, WorkerSource
from framework.diagnosis.facts import Facts, Machine, Rates, Settings, Storage
from framework.diagnosis.step_rules import TINY
from framework.measure.disk import disk_kind
from framework.measure.host import available_memory_bytes, cpu_info, num_cores, threads_per_rank
from framework.measure.machine_watch import MachineUse, MachineWatch
from framework.measure.statistics import median
from framework.media.decode import image_size
from framework.media.header import BadImage, read_header
from framework.order.batches import Order, spread
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.store.open_store import ShardedStore, files_of
from framework.store.staging import cached_share
from framework.store.values import RAGGED
from framework.system.native import limit_threads
from framework.trials.probe import Config, Probe, Rate

NUM_SAMPLES = 64  # records whose size is looked at
FORMS: dict[type, str] = {FolderStore: "folder", HDF5Store: "hdf5", LMDBStore: "lmdb"}
SLICE = 16  # images prepared at a time in one thread, so that a second holds several slices
GRACE_S = 1.0  # how much longer than planned a measurement of slow steps may take
NUM_WINDOWS = 5
TURNS = 2
SLOW_STEPS = 5
GROWTH = 8  # a tiny batch is compared with one so many times as large, another with half of it
UNCHANGED = "framework.transform.function.unchanged"
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
# What takes many more steps is left out if slow steps have used up so many times the seconds.
LATEST = 2.5

Say = Callable[[str], None]
Action = Callable[[Tensor], object]


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


def gather_facts(setting: Setting, seconds: float, say: Say) -> Facts:
    """Measure and describe a run in about ``seconds``. ``say`` announces each measurement."""
    latest = time.perf_counter() + LATEST * seconds
    load = os.getloadavg()[0]

    def has_time(what: str) -> bool:
        is_early = time.perf_counter() <= latest
        if not is_early:
            say(f"no time left for {what}")
        return is_early

    with closing(setting.probe()) as probe:
        source = probe.assembly.train_source
        storage: Storage | None = None
        alone: dict[str, Any] = {}
        if isinstance(source, StoreSource):
            # First, since reading fills the page cache.
            storage = storage_of(source.store, probe.config)
            alone = _alone(setting, source, seconds, say)
        elif isinstance(source, DatasetSource):
            storage = storage_of_items(source, probe.config)
            say("making items")  # in this thread: no other one may share the Dataset
            items = _indices(source.order, SLICE)
            alone = {"prepare": _rate(_preparing(source), items, PREPARE * seconds)[0]}
        together, use = _together(probe, seconds, say)
        rates = Rates(**together, copy=_copy_rate(probe), **alone)
        flags, device = cpu_info("flags"), probe.assembly.device
        gpu, bf16 = None, "amx_bf16" in flags or "avx512_bf16" in flags
        if device.type == "cuda":
            gpu, bf16 = torch.cuda.get_device_name(device), torch.cuda.is_bf16_supported()
        machine = Machine(num_cores(), available_memory_bytes(), gpu, bf16, load)
        tries = has_time("other numbers of threads, other cores and the disk")
        on_machine = measure_machine(probe, seconds, use, say if tries else None)
        say("lines of your Python")
        python = measure_python(probe, seconds)
        say("calls that wait for the device")
        syncs = measure_syncs(probe)
        on_run = None
        if has_time("validating, saving and reporting"):
            say("validating, saving and reporting")
            on_run = measure_run(probe, seconds)
        model: nn.Module = probe.assembly.build("model")
        is_channels_first = any(
            isinstance(module, nn.Conv2d)
            and not module.weight.is_contiguous(memory_format=torch.channels_last)
            for module in model.modules()
        )
        return Facts(
            machine,
            settings_of(probe),
            rates,
            storage,
            convolutional=not probe.config["channels_last"] and is_channels_first,
            python=python,
            on_machine=on_machine,
            slow_records=slow_block(source.slow_records(), probe.assembly.waits),
            on_run=on_run,
            syncs=syncs,
        )


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
    watch = MachineWatch()
    use = MachineUse(1.0)
    # Slow steps get one turn: each takes as long as several steps.
    batch_s = num_records / loader.records_per_s
    num_turns = TURNS if WHOLE * seconds > SLOW_STEPS * batch_s else 1
    for _ in range(num_turns):  # in turn, because each is judged by the other
        say("computing alone")
        computes.append(probe.compute(COMPUTE * seconds / num_turns, burn_in_s))
        say("training")
        watch.lap()
        wholes.append(probe.train(WHOLE * seconds / num_turns, burn_in_s))
        use = watch.lap()
    compute, whole = _pooled(computes), _pooled(wholes)
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
    return rates, use


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
    rates["read"], rates["read_cores"] = _rate_in_thread(
        lambda part: touch(store.read(part, views)), indices, READ * seconds
    )
    say("decoding and transforming")
    prepare = _preparing(source)
    system_s, start = os.times().system, time.perf_counter()
    rates["prepare"], rates["prepare_cores"] = _rate_in_thread(prepare, indices, PREPARE * seconds)
    system_s = os.times().system - system_s
    rates["prepare_system_cores"] = system_s / (time.perf_counter() - start)
    if num_cores() > 1:
        rates["prepare_two"] = _rate_of_two(prepare, indices, TWO * seconds)
        # Of two threads without a lock, on cores as busy as these.
        data = bytes(1 << 20)
        parts = repeat(torch.zeros(1))

        def work(_: Tensor) -> None:
            hashlib.sha256(data)

        two = _rate_of_two(work, parts, TWO * seconds / 2)
        rates["two_cores"] = two / _rate_in_thread(work, parts, TWO * seconds / 2)[0]
    transform = setting.config["transform"]
    if source.read.transform.function is not None and "geometry" in transform:
        transform = {**transform, "function": {"_target_": UNCHANGED, "_partial_": True}}
        config = {**setting.config, "transform": transform}
        plain = setting._replace(config=config, allowed=(*setting.allowed, UNCHANGED))
        with closing(plain.probe()) as probe:
            prepare = _preparing(probe.assembly.train_source)
            indices = _indices(source.order, SLICE)
            rates["prepare_plain"] = _rate_in_thread(prepare, indices, PLAIN * seconds)[0]
    return rates


def _preparing(source: Source) -> Action:
    assert isinstance(source, StoreSource | DatasetSource)
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


def _rate_in_thread(
    action: Action, indices: Iterator[Tensor], seconds: float
) -> tuple[float, float]:
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


def _copy_rate(probe: Probe) -> float | None:
    """Return records per second from page-locked memory to the device; None without CUDA."""
    device = probe.assembly.device
    if device.type != "cuda":
        return None
    batch = probe.host_batch()
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


def settings_of(probe: Probe) -> Settings:
    config, source = probe.config, probe.assembly.train_source
    transform: Any = probe.assembly.build("transform")
    workers, kind = config["workers"]["num"] or 0, config["workers"]["kind"] or "thread"
    if isinstance(source, WorkerSource):
        workers, kind = source.workers.num, source.workers.kind
    size: Any = transform.size and tuple(map(int, transform.size))
    groups = ("loader", "precision", "transform", "augment")
    modules = {name: str(config[name]["_target_"]).split(".")[-2] for name in groups}
    return Settings(
        batch_size=len(next(iter(source.order.shares(0))).indices),
        workers=workers,
        kind=kind,
        **modules,
        size=size,
        has_function=transform.function is not None or isinstance(source, DatasetSource),
        shuffle=config["shuffle"],
        block=config["order"].get("block_records"),
        staged=config["data"].get("stage") in ("ram", "device"),
        compiled=config["compile"],
        select=config["select"],
    )


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
    free_bytes = math.inf
    with suppress(OSError):  # it may be no path
        free_bytes = float(shutil.disk_usage(Path(path).absolute().parent).free)
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
        free_bytes=free_bytes,
        **_pixels(store.manifest.fields, records),
    )


def touch(records: dict[str, Any]) -> int:
    """Return the bytes of the records and copy each, since mapped memory is read only if used."""
    total = 0
    for values in records.values():
        if isinstance(values, Tensor):
            total += values.nbytes
        else:
            total += sum(len(memoryview(value).tobytes()) for value in values)
    return total


def _pixels(fields: Mapping[str, Field], records: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the images in ``records``, as fields of `Storage`."""
    for name, field in fields.items():
        if field.encoding != "image":
            continue
        known: dict[str, Any] = {"encoding": "image", "channels": field.channels or 3}
        sizes: list[tuple[int, int]] = []
        codecs: Counter[str] = Counter()
        for data in records[name]:
            with suppress(BadImage):
                sizes.append(image_size(data))
                codecs[read_header(data).format] += 1
        if sizes:
            height, width = np.median(sizes, axis=0).astype(int).tolist()
            known |= {"image_size": (height, width), "even": len(set(sizes)) == 1}
            known["codec"] = codecs.most_common(1)[0][0]
        return known
    for field in fields.values():
        if field.encoding == "raw" and field.kind == "image":
            height, width = field.shape[:2] if field.interleaved else field.shape[1:]
            size = (height, width)
            channels = field.channels or 3
            return {"encoding": "raw", "channels": channels, "image_size": size, "even": True}
    return {"encoding": "raw"}


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


def storage_of_items(source: DatasetSource, config: Config) -> Storage:
    """Describe a Dataset by a sample."""
    data, form = config["data"], source.read.form
    indices = next(iter(source.order.shares(0))).indices[:SLICE]
    sample = source.read(Request(0, indices, training=False))
    indices = sample.pop("index")
    words = ""
    others = [value for name, value in sample.items() if name not in form.ragged]
    # A store has numbers and texts.
    if form.collate is None and all(
        isinstance(column, Tensor) or all(isinstance(value, str) for value in column)
        for column in others
    ):
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
