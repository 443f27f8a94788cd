"""Rules about workers, loaders and stores: what a step waits for."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from framework.cli import arguments, tables
from framework.contracts.waits import FEW, MOST_NAMED, named
from framework.diagnosis.facts import Facts, Storage, Verdict, gain

# If Python's lock is held for a larger share of preparing, a second thread gains less than half.
LOCKED = 0.5
CLEARLY = 1.2  # the least factor between two rates that counts as clearly faster
# If the shorter side of an image is so many times longer than needed, decoding is mostly wasted.
LARGE = 2.0
MEMORY_SHARE = 0.5  # of free memory, that a store may take
GATHER_BYTES_PER_S = 2e9  # that one thread copies out of memory (benchmarks/README.md, D)
FIXED = {"resize", "center_crop"}  # transforms that give every epoch the same pixels
MOST_SHARE = 0.99  # of a step, that slow records may take in a prediction


def waiting(facts: Facts) -> str:
    """Return a sentence that compares preparing and computing a batch."""
    prepare_ms = 1e3 * facts.batch_size / (facts.prepare or facts.loader_rate)
    compute_ms = 1e3 * facts.batch_size / facts.compute
    takes = f"and computing takes {compute_ms:.1f} ms."
    return f"One thread prepares a batch in {prepare_ms:.1f} ms, {takes}"


def _needs_workers(facts: Facts) -> bool:
    if facts.lock_share > LOCKED and facts.kind == "thread":  # see `processes`
        return False
    # A batch that is prepared faster is not worth handing over.
    is_work = facts.slow_rate is not None and not facts.staged and facts.load_s >= 2e-3
    return is_work and facts.workers < facts.num_cores


def too_few_or_too_many_workers(facts: Facts) -> Iterator[Verdict]:
    workers, cores, rate = facts.workers, facts.num_cores, facts.slow_rate
    as_many = (f"workers.num={cores}",)
    if _needs_workers(facts):
        few = f"Only {tables.plural(workers, 'worker')}" if workers else "No workers"
        yield Verdict(
            "raise_workers",
            f"{few} for {cores} cores. {waiting(facts)}",
            f"Use {cores} workers, which prepare records while the step computes.",
            gain(facts, workers=cores),
            as_many,
        )
    is_locked = facts.lock_share > LOCKED or facts.has_function
    if workers > cores:
        if facts.kind != "thread" and not is_locked and facts.prepare is not None:
            as_many += ("workers.kind=thread",)
        yield Verdict(
            "lower_workers",
            f"{workers} workers share {cores} cores with the step: computing alone does "
            f"{facts.compute:,.0f} records/s, with the workers {facts.whole:,.0f}.",
            f"Use {cores} workers; more only take turns, and cost memory and start-up time each.",
            1 + 0.01 * workers / cores,  # the model cannot predict it: more than 1 gets it tried
            as_many,
        )
    if rate is None or workers == 0 or facts.has_function:
        return
    if rate >= CLEARLY * facts.loader_rate and (workers <= cores or facts.kind != "thread"):
        none = ["workers.num=0"]
        if facts.kind == "process":
            none.append("workers.kind=null")  # typed, it would be refused without workers
        if facts.loader == "plain":
            none.append("loader=prefetch")
        yield Verdict(
            "no_workers",
            f"One thread prepares {rate:,.0f} records/s, but {workers} workers on {cores} cores "
            f"only {facts.loader_rate:,.0f}: handing a batch over costs more than preparing it.",
            "Use no workers; loader=prefetch reads ahead without them.",
            gain(facts, measured=True, workers=0, ahead=True),
            tuple(none),
        )
    if facts.kind == "process" and workers <= cores and not is_locked:
        yield Verdict(
            "threads",
            f"{workers} worker processes copy each batch although nothing holds Python's lock: "
            f"one thread prepares {rate:,.0f} records/s, two {facts.prepare_two or 0:,.0f}.",
            "Use threads, which share the batch's memory and need none of their own.",
            max(1.01, gain(facts, kind="thread")),
            ("workers.kind=thread",),
        )


def locked_threads(facts: Facts) -> Iterator[Verdict]:
    """Detect preparing that holds Python's lock, or slows the step that computes meanwhile."""
    cores, rate, two = facts.num_cores, facts.slow_rate, facts.prepare_two
    slowed = _slowed_step(facts)
    if slowed is not None:  # the same advice
        yield slowed
        return
    is_locked = max(facts.lock_share, facts.function_share) > LOCKED
    has_threads = facts.kind != "process" or not facts.workers
    if rate and two and is_locked and has_threads and not facts.staged:
        holder = "Reading"
        if facts.has_function:
            share = 100 * facts.function_share
            holder = f"The transform's Python function ({share:.0f} % of preparing a record)"
        yield Verdict(
            "processes",
            f"{holder} holds Python's lock, so threads take turns: one thread prepares "
            f"{rate:,.0f} records/s, two together {two:,.0f}. {waiting(facts)}",
            f"Use {cores} processes, which have a lock each and do not block the step.",
            gain(facts, kind="process", workers=cores),
            ("workers.kind=process", f"workers.num={cores}"),
        )


def _slowed_step(facts: Facts) -> Verdict | None:
    """Detect steps that hardly wait for data, but compute longer while it is read."""
    workers, cores, storage = facts.workers, facts.num_cores, facts.storage
    # See `lower_workers` and `processes`.
    is_limited = facts.lock_share > LOCKED and CLEARLY * facts.loader_rate < facts.compute
    if facts.staged or is_limited or workers > cores:
        return None
    if not facts.slow_rate or not facts.mostly_slowed:
        return None
    lacks_core = facts.use.own_cores + facts.use.waited_cores > 0.9 * cores
    others: list[str] = []
    if not lacks_core and (workers == 0 or facts.kind == "thread"):
        num = max(1, cores - 1)
        advice = f"Read in processes ({num}), which do not take Python's lock from the step"
        overrides = ("workers.kind=process", f"workers.num={num}")
        if workers > 1:
            others.append("fewer threads")
    elif facts.gpu and workers > 1:
        num = workers // 2
        advice = f"Use {num} workers, which leave cores to the thread that launches kernels"
        overrides = (f"workers.num={num}",)
    else:  # all cores compute or read: see the rules about stores
        return None
    if storage is not None and storage.encoding == "image":
        others.append("images packed smaller (pack.resize) or as pixels (pack.encode=raw)")
        if facts.gpu:
            others.append("data=dali")
    left = max(1 - (facts.training_s - facts.alone_s) / facts.step_s, 0.1)
    return Verdict(
        "slowed_step",
        f"Reading slows the step by {100 * facts.slowed_share:.0f} %: it computes for "
        f"{1e3 * facts.alone_s:.1f} ms on a batch that stays on the device, and "
        f"{1e3 * facts.training_s:.1f} ms while data is read.",
        f"{'; or try '.join([advice, *others])}.",
        min(facts.headroom, 1 / left),
        overrides,
    )


def loaders(facts: Facts) -> Iterator[Verdict]:
    """Detect a loader that reads nothing ahead, and what a GPU waits for or could augment."""
    waits_for_workers = facts.workers == 0 and _needs_workers(facts)  # which read ahead, too
    if facts.loader == "plain" and facts.data_limits and not waits_for_workers:
        loader = "stream" if facts.gpu else "prefetch"
        yield Verdict(
            "prefetch",
            f"With loader=plain, each step waits until its batch is prepared. {waiting(facts)}",
            f"Use loader={loader}, whose thread keeps batches ready while the step computes.",
            gain(facts, ahead=True),
            (f"loader={loader}",),
        )
    if not facts.gpu:
        return
    copying = facts.whole / (facts.copy or math.inf)  # as a share of the step
    if copying >= 0.02 and facts.loader not in ("stream", "plain"):
        step_ms = 1e3 * facts.step_s
        yield Verdict(
            "stream",
            f"A step waits for its copy to the GPU: {copying * step_ms:.1f} of {step_ms:.1f} ms.",
            "Use loader=stream, which copies the next batch while the step computes.",
            1 / (1 - copying),
            ("loader=stream",),
            parts=("copy",),
        )
    move = f"Move it to {facts.gpu}, which processes a whole batch in one call"
    if facts.slow_rate and facts.function_share:
        share = 100 * facts.function_share
        yield Verdict(
            "augment_on_device",
            f"The transform's function takes {share:.0f} % of preparing a record on the host.",
            f"{move}.",
            gain(facts, load_s=facts.load_s * (1 - facts.function_share)),
            edit="an augment (uint8 [B, C, H, W] on the device) that does what the function does, "
            "such as augment=color_jitter, or your own class with __call__(batch, draws)",
            learns=True,
        )
    elif facts.slow_rate and facts.transform == "flip" and facts.augment == "normalize":
        yield Verdict(
            "augment_on_device",
            f"transform=flip changes the pixels on the host. {waiting(facts)}",
            f"{move}; the host then only copies raw records.",
            gain(facts, load_s=facts.load_s / 2),
            ("transform=none", "augment=crop_flip", "augment.padding=0"),
            learns=True,
        )


def image_files(facts: Facts) -> Iterator[Verdict]:
    """Detect images that are much larger than what the model sees, or are decoded every epoch."""
    storage = facts.slow_storage
    if storage is None or storage.image_size is None:
        return
    if storage.form == "other" or not storage.targets:  # nothing can pack it
        return
    side, _ = _scale(facts)
    options, num_bytes, copied_s = _packed(facts, storage)
    if side >= LARGE:
        rule = "repack_smaller"
        if storage.encoding == "raw":
            rule = "raw_too_large"
        elif storage.record_bytes >= 1e6:
            rule = "huge_records"
        height, width = storage.image_size
        kb = f"{storage.record_bytes / 1e3:,.0f} kB"
        says = f"Images of {height} x {width} pixels ({kb}) are read whole, {facts.record_ms:.1f} "
        says += f"ms each, although the model sees only {' x '.join(map(str, facts.size or ()))}."
        load_s = facts.load_s / side**1.5
        advice = "Pack the images once at the size that is needed."
        learns = facts.transform != "resize"
    elif (
        storage.encoding == "image"
        and not _are_small_files(facts)
        and facts.read_share <= 0.5  # with less decoding, no format is to blame
        and (copied_s is not None or storage.codec != "jpeg")
    ):
        decoding = {"jpeg": "decode_jpeg", "png": "decode_png", "webp": "decode_webp"}
        rule = decoding.get(storage.codec, "decode_other")
        share = f"{100 * (1 - facts.read_share):.0f} % of it decoding and transforming"
        says = f"Every epoch decodes all {storage.codec or 'image'} files again: "
        says += f"{facts.record_ms:.2f} ms each, {share}."
        load_s = facts.load_s / 2  # a PNG or WebP file takes at least twice as long as a JPEG
        advice = "Pack the images as JPEGs, which are decoded faster and are a little lossy."
        learns = copied_s is None or "resize" in options
    else:
        return
    if copied_s is not None:
        load_s = copied_s
        advice = "Pack the images once as pixels of the needed size, which are only copied."
    verdict = Verdict(rule, says, advice, gain(facts, load_s=load_s), learns=learns)
    yield replace(verdict, repack=storage.repack(**options), disk_bytes=num_bytes)


def loose_files(facts: Facts) -> Iterator[Verdict]:
    """Detect files each of which is opened, read and closed for its record."""
    storage, share = facts.slow_storage, facts.read_share
    if storage is None or storage.form != "folder" or facts.read is None:
        return
    takes = f"reading a file takes {1e6 / facts.read:.0f} us, {100 * share:.0f} % of preparing its"
    options: dict[str, Any] = {"encode": "keep"}
    num_bytes = storage.num_bytes
    if _are_small_files(facts):
        load_s = max(1 - 0.9 * share, 0.1) * facts.load_s
        pixels, pixel_bytes, copied_s = _packed(facts, storage)
        if copied_s is not None and storage.image_size is not None:
            options, num_bytes, load_s = pixels, pixel_bytes, copied_s
        yield Verdict(
            "small_records",
            f"{storage.num_records:,} files of {storage.record_bytes / 1e3:.1f} kB: opening and "
            f"{takes} record.",
            "Pack the files into one store, which is opened once and read a batch at a time.",
            gain(facts, load_s=load_s),
            repack=storage.repack(**options),
            disk_bytes=num_bytes,
        )
    elif share >= 0.05:
        read_s = facts.batch_size / facts.read
        yield Verdict(
            "pack_folder",
            f"The records are {storage.num_records:,} loose files: opening and {takes} record.",
            "Pack the files unchanged into one store, which is opened once.",
            gain(facts, load_s=max(facts.load_s - 0.9 * read_s, 0.1 * facts.load_s)),
            repack=storage.repack(**options),
            disk_bytes=num_bytes,
        )


def _are_small_files(facts: Facts) -> bool:
    """Return whether the number of files is to blame, and not their format."""
    storage = facts.slow_storage
    if storage is None or storage.form != "folder" or not storage.targets:
        return False
    return storage.record_bytes < 8e3 and facts.read_share >= 0.2


def datasets_and_disks(facts: Facts) -> Iterator[Verdict]:
    """Detect items that are made again but fit in memory, and a slow disk read at random."""
    storage, free_bytes = facts.slow_storage, facts.free_memory_bytes
    if storage is None:
        return
    copied_s = facts.batch_size * storage.record_bytes / GATHER_BYTES_PER_S
    if storage.pack_words and storage.num_bytes <= MEMORY_SHARE * free_bytes:
        advice = f"Pack the items: {storage.num_bytes / 1e6:,.0f} MB, which are only copied."
        if storage.draws:
            advice += " Move its random changes to augment=."
        yield Verdict(
            "pack_dataset",
            f"Each epoch makes all items of {storage.path} again: {facts.record_ms:.2f} ms each.",
            advice,
            gain(facts, load_s=copied_s),
            edit=f"a store: {storage.pack_words}; then train with data=hdf5 data.train=packed.h5",
            learns=storage.draws,
        )
    is_slow = storage.disk in ("rotating", "network") and storage.num_bytes > free_bytes
    if is_slow and facts.shuffle and facts.block is None:
        read_s = facts.batch_size / (facts.read or facts.prepare or 1)
        yield Verdict(
            "order_block",
            f"{storage.num_bytes / 1e9:.0f} GB on a {storage.disk} disk are read at random.",
            "Shuffle blocks of neighbors, and records within a window of blocks.",
            gain(facts, load_s=max(facts.load_s - read_s * 7 / 8, 0.0)),
            ("order=block", "order.block_records=1024", "order.window_blocks=4"),
            learns=True,
        )


def slow_records(facts: Facts) -> Iterator[Verdict]:
    """Detect a few records that take many times as long as the others and delay their batches."""
    block = facts.slow_records
    if not block or not facts.data_limits or block["num_slow"] > FEW * block["num_records"]:
        return
    # The waiting was measured without steps, too. Its share is taken to be the same.
    share = (1 - 1 / facts.headroom) * block["saved_s"] / (block["wait_s"] or 1.0)
    if share < 0.03:
        return
    rest = max(1 - block["slow_s"] / block["read_s"], 1 - MOST_SHARE)
    names = ", ".join(map(named, block["records"][:MOST_NAMED]))
    of_waiting = 100 * block["slow_wait_s"] / block["wait_s"]
    # A trial leaves the slow records out, if each was read three times, so that all are known.
    trial: tuple[str, ...] = ()
    is_store = facts.storage is not None and facts.storage.form != "dataset"
    if is_store and block["num_slow"] >= 3 * len(block["numbers"]):
        others = f"record not in {list(block['numbers'])}"
        if facts.select is not None:
            others = f"({facts.select}) and {others}"
        trial = (f"select={arguments.quoted(others)}",)
    yield Verdict(
        "slow_records",
        f"{block['num_slow']:,} of {block['num_records']:,} reads took at least 8 times as long as "
        f"the usual {1e3 * block['usual_s']:.1f} ms, and {of_waiting:.0f} % of the waiting was for "
        f"their batches: {names}.",
        "Make these records as small as the others, or move them to a disk that is as fast.",
        min(gain(facts, load_s=rest * facts.load_s), 1 / (1 - min(share, MOST_SHARE))),
        action="shrink these files, or pack all with pack.max_side=512, say",
        trial=trial,
    )


RULES = (
    too_few_or_too_many_workers,
    locked_threads,
    loaders,
    image_files,
    loose_files,
    datasets_and_disks,
    slow_records,
)


def _scale(facts: Facts) -> tuple[float, int]:
    """Return how many times too long an image's shorter side is (0: unknown), and what it needs."""
    storage, most = facts.storage, max(facts.size or (0,))
    needed = 2 * most  # of random crops
    if facts.transform in FIXED:
        needed = most * 8 // 7
    keeps_scale = facts.transform == "random_crop"  # its images cannot be packed smaller
    if storage is None or storage.image_size is None or not most or keeps_scale:
        return 0.0, needed
    return min(storage.image_size) / needed, needed


def _packed(facts: Facts, storage: Storage) -> tuple[dict[str, Any], float, float | None]:
    """Return options of ``pack``, bytes of the store, and seconds to copy a batch (None: JPEGs)."""
    image_size = storage.image_size or (1, 1)
    side, needed = _scale(facts)
    scale = max(1.0, side)
    size: list[int] | None = None
    if facts.transform == "resize" and facts.size is not None:
        size = list(facts.size)
    elif storage.even and facts.transform not in FIXED:
        size = [max(1, round(length / scale)) for length in image_size]
    most = min(MEMORY_SHARE * facts.free_memory_bytes, 0.8 * storage.free_bytes)
    if size is None or storage.num_records * storage.channels * math.prod(size) > most:
        options: dict[str, Any] = {"encode": "jpeg"}
        if scale > 1:
            options["resize"] = needed
        num_pixels = math.prod(length / scale for length in image_size)
        return options, storage.num_records * num_pixels * 0.4, None  # a photograph at quality 90
    options = {"encode": "raw"}
    if facts.transform == "resize":
        options["size"] = size
    elif min(size) < min(image_size):
        options["resize"] = min(size)
    record_bytes = storage.channels * math.prod(size)
    copied_s = facts.batch_size * record_bytes / GATHER_BYTES_PER_S
    if facts.transform != "none":
        options["layout"] = "hwc"
        copied_s += facts.batch_size * 3e-5  # of a small array that needs no scaling
    return options, float(storage.num_records * record_bytes), copied_s
