"""Measure each part of a configured run, alone and together, and describe its store and machine."""

import hashlib
import math
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import count, repeat
from pathlib import Path
from statistics import fmean, mode
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from framework.cli.arguments import block_words
from framework.commands.diagnose import measure_run
from framework.config.targets import data_name, split_of, val_sets
from framework.contracts import span, waits
from framework.contracts.batch import leaves, move, pin, tensors
from framework.contracts.records import Field, RecordStore
from framework.data import dataset, reader
from framework.data.source import StoreSource, WorkerSource
from framework.diagnosis.facts import Facts, Storage
from framework.diagnosis.step_rules import TINY
from framework.errors import Say
from framework.measure import host, statistics
from framework.measure.usage import MachineUse, MachineWatch
from framework.media.header import BadImage, ImageHeader, read_header
from framework.order.batches import Order, spread
from framework.store import folder_store, foreign, hdf5_store, lmdb_store, open_store, staging
from framework.system.native import limit_threads
from framework.system.portable import allowed_cores
from framework.trials.probe import Config, Probe, Rate

NUM_SAMPLES = 64  # records whose size is looked at
FORMS: dict[type, str] = {
    folder_store.FolderStore: "folder",
    hdf5_store.HDF5Store: "hdf5",
    lmdb_store.LMDBStore: "lmdb",
}
SLICE = 16  # images prepared at a time in one thread, so that a second holds several slices
NUM_WINDOWS = 5
# Shares of the given seconds. The burn-in is added to most of the others.
BURN_IN = 0.03
READ = 0.05
PREPARE = 0.06
TWO = 0.05
LOADER = 0.12
COMPUTE = 0.18
OTHER = 0.08
WHOLE = 0.18
# Shares of the seconds for changes of the machine: a turn of computing and of training, before
# which the batches that wait in the loader are used up, and reading the disk.
TURN = 0.02
TURN_BURN_IN = 0.01
TRAIN_TURN = 0.1
DRAIN = 0.03
DISK = 0.03
TURNS = 2
NUM_PIECES = 4096

Action = Callable[[Tensor], object]


class Setting(NamedTuple):
    """A configuration that can run, and the user's packages that it may import."""

    config: Config
    allowed: tuple[str, ...]
    threads: int | None = None  # of torch, for an operator; None: as many as a run uses

    def probe(self, num_windows: int = NUM_WINDOWS, epoch: int = 1) -> Probe:
        """Return a new probe. Epoch 0 is read to measure the parts alone."""
        # As a training run does. With another number, the rates would not be those of a run.
        torch.set_num_threads(self.threads or host.threads_per_rank())
        config = {**self.config, "clock": "full"}
        return Probe(config, self.allowed, num_windows, measure_run.GRACE_S, epoch)


def gather_facts(setting: Setting, seconds: float, say: Say) -> Facts:
    """Measure and describe a run in about ``seconds``. ``say`` announces each measurement."""
    latest = time.perf_counter() + 2.5 * seconds  # what takes many more steps is then left out
    known: dict[str, Any] = {}

    def has_time(what: str) -> bool:
        is_early = time.perf_counter() <= latest
        say(what if is_early else f"no time left for {what}")
        return is_early

    with closing(setting.probe()) as probe:
        source = probe.assembly.train_source
        if isinstance(source, StoreSource):
            # First, since reading fills the page cache.
            known["storage"] = storage_of(source.store, probe.config)
            known |= _alone(source, seconds, say)
        elif isinstance(source, dataset.DatasetSource):
            known["storage"] = storage_of_items(source, probe.config)
            say("making items")  # in this thread: no other one may share the Dataset
            items = _indices(source.order, SLICE)
            known["prepare"], _ = _rate(partial(_prepare, source), items, PREPARE * seconds)
        known |= _together(probe, seconds, say)
        known |= {"copy": _copy_rate(probe), **machine_of(probe)}
        if has_time("other numbers of threads, other cores and the disk"):
            known |= try_machine(probe, seconds, known["use"])
        say("lines of your Python, and calls that wait for the device")
        known |= measure_run.measure_code(probe, seconds)
        if has_time("validating, saving and reporting"):
            known["run"] = measure_run.measure_run(probe, seconds)
        model: nn.Module = probe.assembly.build("model")
        is_channels_first = any(
            isinstance(module, nn.Conv2d)
            and not module.weight.is_contiguous(memory_format=torch.channels_last)
            for module in model.modules()
        )
        known["convolutional"] = is_channels_first and not probe.config["channels_last"]
        known["slow_records"] = waits.slow_block(source.slow_records(), probe.assembly.waits)
        return Facts(**settings_of(probe), **known)


def _together(probe: Probe, seconds: float, say: Say) -> dict[str, Any]:
    burn_in_s = BURN_IN * seconds
    say("workers and loader")
    loader = probe.loader(LOADER * seconds, burn_in_s)
    num_records = len(probe.batch["index"])
    computes: list[Rate] = []
    wholes: list[Rate] = []
    watch = MachineWatch()
    use = MachineUse(1.0)
    # Slow steps get one turn: each takes as long as several steps.
    num_turns = TURNS if WHOLE * seconds > 5 * num_records / loader.records_per_s else 1
    for _ in range(num_turns):  # in turn, because each is judged by the other
        say("computing alone")
        computes.append(probe.compute(COMPUTE * seconds / num_turns, burn_in_s))
        say("training")
        watch.lap()
        wholes.append(probe.train(WHOLE * seconds / num_turns, burn_in_s))
        use = watch.lap()
    compute, whole = _pooled(computes), _pooled(wholes)
    say("computing another batch size")
    other, other_size = None, num_records // 2
    if num_records < TINY:
        other_size = 8 * num_records
    with suppress(torch.OutOfMemoryError):
        other = probe.compute(OTHER * seconds, burn_in_s, other_size).records_per_s
    return {
        "use": use,
        "loader_rate": loader.records_per_s,
        "compute": compute.records_per_s,
        "compute_cores": compute.busy_cores,
        "other": other,
        "other_size": other_size,
        "whole": whole.records_per_s,
        "wait": span.waiting_share(whole.spans_s) or 0.0,
        "spans_s": whole.spans_s,
        "compute_spans_s": compute.spans_s,
        "spread": whole.spread,
    }


def _pooled(rates: list[Rate]) -> Rate:
    windows = tuple(window for rate in rates for window in rate.windows)
    names = {name for rate in rates for name in rate.spans_s}
    spans_s = {name: fmean(rate.spans_s.get(name, 0.0) for rate in rates) for name in names}
    return Rate(windows, spans_s, fmean(rate.busy_cores for rate in rates))


def _alone(source: StoreSource, seconds: float, say: Say) -> dict[str, Any]:
    """Measure in threads like a worker's: the main thread would share its work among all cores."""
    store, views = source.store, tuple(source.read.views)
    has_images = any(field.encoding == "image" for field in store.manifest.fields.values())
    has_function = source.read.transform.function is not None
    size = SLICE if has_images or has_function else source.order.batch_size
    indices = _indices(source.order, size)
    rates: dict[str, Any] = {}
    say("reading")
    rates["read"], rates["read_cores"] = _rate_in_threads(
        lambda part: touch(store.read(part, views)), indices, READ * seconds
    )
    say("decoding and transforming")
    prepare = partial(_prepare, source)
    system_s, start = os.times().system, time.perf_counter()
    rates["prepare"], rates["prepare_cores"] = _rate_in_threads(prepare, indices, PREPARE * seconds)
    system_s = os.times().system - system_s
    rates["prepare_system_cores"] = system_s / (time.perf_counter() - start)
    if host.num_cores() > 1:
        rates["prepare_two"], _ = _rate_in_threads(prepare, indices, TWO * seconds, 2)
        # Of two threads without a lock, on cores as busy as these.
        data, parts = bytes(1 << 20), repeat(torch.zeros(1))
        together, alone = (
            _rate_in_threads(lambda _: hashlib.sha256(data), parts, TWO * seconds / 2, num)[0]
            for num in (2, 1)
        )
        rates["two_cores"] = together / alone
    return rates


def _prepare(source: StoreSource | dataset.DatasetSource, part: Tensor) -> object:
    return source.read(reader.Request(0, part, training=True))


def _indices(order: Order, size: int) -> Iterator[Tensor]:
    for epoch in count():
        for share in order.shares(epoch):
            yield from share.indices.split(size)


def _rate(action: Action, indices: Iterator[Tensor], seconds: float) -> tuple[float, float]:
    """Return records and CPU seconds per second. The first call opens files and does not count."""
    action(next(indices))
    start, cpu_s = time.perf_counter(), time.process_time()
    num_records = 0
    while time.perf_counter() - start < seconds or not num_records:
        part = next(indices)
        action(part)
        num_records += len(part)
    took_s = time.perf_counter() - start
    return num_records / took_s, (time.process_time() - cpu_s) / took_s


def _rate_in_threads(
    action: Action, indices: Iterator[Tensor], seconds: float, num_threads: int = 1
) -> tuple[float, float]:
    lock = threading.Lock()

    def locked() -> Iterator[Tensor]:
        while True:
            with lock:
                part = next(indices)
            yield part

    with ThreadPoolExecutor(num_threads, "paceline-diagnose", limit_threads, (1,)) as pool:
        jobs = [pool.submit(_rate, action, locked(), seconds) for _ in range(num_threads)]
        rates, cores = zip(*(job.result() for job in jobs), strict=True)
        return sum(rates), sum(cores)


def _copy_rate(probe: Probe) -> float | None:
    """Return records per second from page-locked memory to the device; None without CUDA."""
    device = probe.assembly.device
    if device.type != "cuda":
        return None
    host_batch = pin({name: tensor.cpu() for name, tensor in tensors(probe.host_batch).items()})
    times_s: list[float] = []
    for _ in range(13):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        copies = move(host_batch, device)
        torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - start)
        del copies
    return len(host_batch["index"]) / statistics.median(times_s[3:])


def settings_of(probe: Probe) -> dict[str, Any]:
    config, source = probe.config, probe.assembly.train_source
    transform: Any = probe.assembly.build("transform")
    workers, kind = config["workers"]["num"] or 0, config["workers"]["kind"] or "thread"
    if isinstance(source, WorkerSource):
        workers, kind = source.workers.num, source.workers.kind
    groups = ("loader", "precision", "transform", "augment")
    return {
        "batch_size": len(next(iter(source.order.shares(0))).indices),
        "workers": workers,
        "kind": kind,
        **{name: str(config[name]["_target_"]).split(".")[-2] for name in groups},
        "size": transform.size and tuple(map(int, transform.size)),
        "has_function": transform.function is not None or isinstance(source, dataset.DatasetSource),
        "shuffle": config["shuffle"],
        "block": config["order"].get("block_records"),
        "staged": config["data"].get("stage") in ("ram", "device"),
        "compiled": bool(config["compile"]),
        "select": config["select"],
    }


def machine_of(probe: Probe) -> dict[str, Any]:
    flags, quota = host.cpu_info("flags"), host.CGROUPS.cores()
    gpu, bf16 = None, "amx_bf16" in flags or "avx512_bf16" in flags
    if probe.assembly.device.type == "cuda":
        gpu = torch.cuda.get_device_name(probe.assembly.device)
        bf16 = torch.cuda.is_bf16_supported()
    return {
        "num_cores": host.num_cores(),
        "gpu": gpu,
        "bf16": bf16,
        "quota_cores": quota if quota < math.inf else None,
        "memory_bytes": host.total_memory_bytes(),
        "free_memory_bytes": host.available_memory_bytes(),
        "num_threads": torch.get_num_threads(),
        "all_cores": os.cpu_count() or 1,
        "allowed_cores": len(allowed_cores()),
    }


def try_machine(probe: Probe, seconds: float, use: MachineUse) -> dict[str, Any]:
    """Try more or less of the machine, and read its disk. Whatever is changed is changed back."""
    fewer = cores = host.num_cores()
    threads = torch.get_num_threads()
    taken = use.others_cores + use.stolen_cores
    if threads <= cores and taken > 0.5:
        fewer = max(1, cores - round(taken))
    known: dict[str, Any] = {"fewer_threads": min(fewer, threads)}
    if fewer < threads:
        known["fewer_threads_gain"], known["fewer_threads_cores"] = _in_turn(
            lambda: probe.compute(TURN * seconds, TURN_BURN_IN * seconds),
            lambda changed: torch.set_num_threads(fewer if changed else threads),
        )
    known |= _without_opencv(probe, seconds)
    mine, every = allowed_cores(), set(range(os.cpu_count() or 1))

    def spread_out(changed: bool) -> None:
        host.move_threads(every if changed else mine)
        torch.set_num_threads(len(allowed_cores()) if changed else threads)

    if len(mine) < len(every) and use.own_cores + use.waited_cores > 0.7 * len(mine):
        train = partial(probe.train, TRAIN_TURN * seconds, DRAIN * seconds)
        known["all_cores_gain"], _ = _in_turn(train, spread_out)
    return {**known, "disk_rate": read_disk(probe, DISK * seconds)}


def _without_opencv(probe: Probe, seconds: float) -> dict[str, Any]:
    opencv: Any = sys.modules.get("cv2")
    source = probe.assembly.train_source
    if opencv is None or not isinstance(source, StoreSource):
        return {}
    num, threads = source.workers.num, opencv.getNumThreads()
    known: dict[str, Any] = {"opencv_threads": threads}
    is_apart = source.workers.kind == "process" and num
    if threads > 1 and not is_apart and threads * max(1, num) > host.num_cores():
        # Not in turn: threads that were off and on again take turns with ours in another way.
        train = partial(probe.train, TURNS * TRAIN_TURN * seconds, DRAIN * seconds)
        known["no_opencv_gain"], _ = _in_turn(
            train, lambda changed: opencv.setNumThreads(0 if changed else threads), 1
        )
    return known


def _in_turn(
    measure: Callable[[], Rate], change: Callable[[bool], object], num_turns: int = TURNS
) -> tuple[float, float]:
    """Return the factor on a rate that a change makes, and the cores that are then kept busy."""
    rates: dict[bool, list[Rate]] = {False: [], True: []}
    for _ in range(num_turns):
        rates[False].append(measure())
        try:
            change(True)
            rates[True].append(measure())
        finally:
            change(False)
    before, after = _pooled(rates[False]), _pooled(rates[True])
    return after.records_per_s / before.records_per_s, after.busy_cores


def read_disk(probe: Probe, seconds: float) -> host.DiskRate | None:
    source = probe.assembly.train_source
    if not isinstance(source, StoreSource):
        return None
    store, draw = source.store, random.Random(0)  # noqa: S311  # no secret
    num_records = store.manifest.num_records
    if isinstance(store, folder_store.FolderStore):
        names = map(store.name, draw.sample(range(num_records), min(NUM_PIECES, num_records)))
        pieces = [host.Piece(name, 0, os.path.getsize(name)) for name in names]
        return host.disk_rate(pieces, seconds)
    files = list(filter(os.path.isfile, open_store.files_of(str(probe.config["data"]["train"]))))
    if not files:
        return None
    # Pieces of the largest file, each as long as the mean record. A shard has some of the records.
    path = max(files, key=os.path.getsize)
    length = max(1, sum(map(os.path.getsize, files)) // num_records)
    places = range(0, max(1, os.path.getsize(path) - length), length)
    starts = draw.sample(places, min(NUM_PIECES, len(places)))
    return host.disk_rate([host.Piece(path, start, length) for start in starts], seconds)


def storage_of(store: RecordStore, config: Config) -> Storage:
    """Describe the store by a sample. Reading it before would change what is cached."""
    path = str(config["data"]["train"])
    targets = {"train": (path, free_target(path))}
    for name, given in val_sets(config["data"]).items():
        targets[split_of(name)] = (str(given), free_target(str(given)))
    num_records = store.manifest.num_records
    first = store.part(0) if isinstance(store, open_store.ShardedStore) else store
    form = FORMS.get(type(first), "other")
    indices = spread(num_records, min(NUM_SAMPLES, num_records))
    files = list(filter(os.path.isfile, open_store.files_of(path)))
    if form == "folder":
        files = [store.name(index) for index in indices.tolist()]
    cached = staging.cached_share(files)
    records = store.read(indices)
    free_bytes = math.inf
    with suppress(OSError):  # it may be no path
        free_bytes = float(shutil.disk_usage(Path(path).absolute().parent).free)
    return Storage(
        path=path,
        form=form,
        num_records=num_records,
        record_bytes=touch(records) / len(indices),
        disk=host.disk_kind(path) if os.path.exists(path) else "unknown (no such path)",
        cached=cached,
        targets=targets,
        follow_links=config["data"].get("follow_links"),
        free_bytes=free_bytes,
        **_pixels(store.manifest.fields, records),
    )


def touch(records: dict[str, Any]) -> int:
    """Return the bytes of the records and copy each, since mapped memory is read only if used."""
    total = 0
    for column in records.values():
        if isinstance(column, Tensor):
            total += column.nbytes
        else:
            total += sum(len(memoryview(value).tobytes()) for value in column)
    return total


def _pixels(fields: Mapping[str, Field], records: Mapping[str, Any]) -> dict[str, Any]:
    for name, field in fields.items():
        if field.encoding != "image":
            continue
        known: dict[str, Any] = {"encoding": "image", "channels": field.channels or 3}
        headers: list[ImageHeader] = []
        for data in records[name]:
            with suppress(BadImage):
                headers.append(read_header(data))
        if headers:
            sizes = [header.size for header in headers]
            height, width = np.median(sizes, axis=0).astype(int).tolist()
            known |= {"image_size": (height, width), "even": len(set(sizes)) == 1}
            known["codec"] = mode(header.format for header in headers)
        return known
    for field in fields.values():
        if field.encoding == "raw" and field.kind == "image":
            height, width = field.shape[:2] if field.interleaved else field.shape[1:]
            known = {"channels": field.channels or 3, "image_size": (height, width), "even": True}
            return {"encoding": "raw", **known}
    return {"encoding": "raw"}


def free_target(path: str) -> str:
    """Return a free path: ``path`` without its ending, and with -packed, -packed2, ..."""
    place = Path(path)
    if place.suffix in (".h5", ".lmdb"):
        place = place.with_suffix("")
    target, number = f"{place}-packed", 1
    while any(os.path.exists(target + ending) for ending in ("", ".h5", ".lmdb")):
        number += 1
        target = f"{place}-packed{number}"
    return target


def storage_of_items(source: dataset.DatasetSource, config: Config) -> Storage:
    data, form = config["data"], source.read.form
    indices = next(iter(source.order.shares(0))).indices[:SLICE]
    sample = source.read(reader.Request(0, indices, training=False))
    indices = sample.pop("index")
    words = ""
    columns = [column for name, column in sample.items() if name not in form.ragged]
    if form.collate is None and all(  # a store has numbers and texts
        isinstance(column, Tensor) or all(isinstance(value, str) for value in column)
        for column in columns
    ):
        words = f"paceline pack input=dataset 'input.dataset={block_words(data['train'])}'"
        if form.names is not None:
            words += f" 'input.fields={block_words(list(form.names))}'"
        if form.ragged:
            words += f" 'input.kinds={block_words(dict.fromkeys(form.ragged, foreign.RAGGED))}'"
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
