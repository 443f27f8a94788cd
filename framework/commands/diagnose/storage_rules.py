"""Rules about how records are stored, and where. Each: Facts -> Verdict, or None."""

from framework.commands.diagnose.facts import DiagnosisFacts, Storage
from framework.commands.diagnose.model_facts import gain, load_of
from framework.commands.diagnose.verdict import Repack, Verdict

LARGE = 2.0  # times as many pixels a side as the model sees: then most of decoding is for nothing
MEMORY_SHARE = 0.5  # of memory that a store may take
GATHER_BYTES_PER_S = 2e9  # of one thread over memory; measured: benchmarks/README.md, D
FIXED = {"resize", "center_crop"}  # transforms that give every epoch the same pixels
READ_SHARE = 0.05  # of preparing a record: less is not worth packing for
CACHED = 0.8  # share of a store in the page cache beyond which the disk is hardly asked
WAITS = 0.5  # CPU seconds per second of reading below which it is the disk that is waited for


def _repack(storage: Storage, **options: str | int | list[int]) -> Repack:
    source = "folder" if storage.form == "folder" else "store"
    return Repack(
        source, storage.path, storage.target, "hdf5", options, storage.val, storage.val_target
    )


def _can_repack(storage: Storage | None) -> bool:
    return storage is not None and storage.form != "other" and bool(storage.target)


def _side(facts: DiagnosisFacts) -> float:
    """How many times as long the shorter side of an image is as it needs to be; 0: there is no telling."""
    storage, size = facts.storage, facts.settings.size
    if storage is None or storage.image_size is None or size is None or storage.encoding != "image":
        return 0.0
    return min(storage.image_size) / _needed(facts)


def _needed(facts: DiagnosisFacts) -> int:
    """The shorter side, in pixels, that loses nothing the model would see: for random crops, twice their size."""
    size = facts.settings.size
    assert size is not None
    return max(size) * 8 // 7 if facts.settings.transform in FIXED else 2 * max(size)


def _raw_size(facts: DiagnosisFacts) -> list[int] | None:
    """The size at which records may be kept as pixels: no epoch sees anything else. None: there is none, or they do not fit in memory."""
    storage, settings = facts.storage, facts.settings
    if storage is None or storage.image_size is None:
        return None
    if settings.transform == "resize" and settings.size is not None:
        size = settings.size
    elif storage.even and settings.transform not in FIXED:
        size = storage.image_size
    else:
        return None
    bytes_in_all = storage.num_records * storage.channels * size[0] * size[1]
    return list(size) if bytes_in_all <= MEMORY_SHARE * facts.machine.memory_bytes else None


def _gathered_s(facts: DiagnosisFacts, size: list[int]) -> float:
    """Seconds to gather a step's records of this size, kept as pixels."""
    assert facts.storage is not None
    return (
        facts.settings.batch_size * facts.storage.channels * size[0] * size[1] / GATHER_BYTES_PER_S
    )


def repack_smaller(facts: DiagnosisFacts) -> Verdict | None:
    """Images much larger than what the model sees: read and decoded whole for a few of their pixels."""
    storage, load, side = facts.storage, load_of(facts), _side(facts)
    if (
        not facts.data_limits
        or storage is None
        or load is None
        or side < LARGE
        or not _can_repack(storage)
    ):
        return None
    assert storage.image_size is not None
    raw = _raw_size(facts)
    options: dict[str, str | int | list[int]] = (
        {"encode": "raw", "size": raw, "layout": "hwc"}
        if raw
        else {"encode": "jpeg", "resize": _needed(facts)}
    )
    load_s = _gathered_s(facts, raw) if raw else load.load_s / side**1.5
    height, width = storage.image_size
    return Verdict(
        "repack_smaller",
        f"images of {height} x {width} pixels ({storage.record_bytes / 1e3:,.0f} kB) are read whole for "
        f"{' x '.join(map(str, facts.settings.size or ()))}: {1e3 * load.load_s / facts.settings.batch_size:.1f} ms each",
        "packed once at the size that is needed, "
        + ("pixels are only gathered" if raw else "a fraction of the bytes is decoded"),
        gain(facts, load_s=load_s),
        repack=_repack(storage, **options),
        learns=not raw,
    )


def repack_raw(facts: DiagnosisFacts) -> Verdict | None:
    """Images decoded again in every epoch, though their pixels would fit in memory."""
    storage, load = facts.storage, load_of(facts)
    raw = _raw_size(facts)
    if (
        not facts.data_limits
        or storage is None
        or load is None
        or raw is None
        or not _can_repack(storage)
    ):
        return None
    if storage.encoding != "image" or _side(facts) >= LARGE:
        return None
    total = storage.num_records * storage.channels * raw[0] * raw[1]
    layout = {} if facts.settings.transform == "none" else {"layout": "hwc"}
    return Verdict(
        "repack_raw",
        f"every epoch decodes all images again: {1e3 * load.load_s / facts.settings.batch_size:.2f} ms each",
        f"as pixels they take {total / 1e6:,.0f} MB, which fit in memory, and are only gathered; hdf5, which gathers raw records "
        "3 times as fast as lmdb (benchmarks/README.md)",
        gain(facts, load_s=_gathered_s(facts, raw)),
        repack=_repack(storage, encode="raw", size=raw, **layout),
    )


def pack_folder(facts: DiagnosisFacts) -> Verdict | None:
    """Loose files: each record is opened, read and closed."""
    storage, rates, load = facts.storage, facts.rates, load_of(facts)
    if (
        storage is None
        or storage.form != "folder"
        or load is None
        or rates.read is None
        or not facts.data_limits
    ):
        return None
    read_s = facts.settings.batch_size / rates.read
    if read_s < READ_SHARE * load.load_s:
        return None
    return Verdict(
        "pack_folder",
        f"{storage.num_records:,} loose files: opening and reading one takes {1e6 / rates.read:.0f} us, "
        f"{100 * read_s / load.load_s:.0f} % of preparing it",
        "one file is opened once; the files' own bytes are kept. hdf5, a memory map that any tool can open; lmdb is as fast for image "
        "files and slower for raw records (benchmarks/README.md)",
        gain(facts, load_s=max(load.load_s - 0.9 * read_s, 0.1 * load.load_s)),
        repack=_repack(storage, encode="keep"),
    )


def repack_contiguous(facts: DiagnosisFacts) -> Verdict | None:
    """Compressed chunks read at random: a whole chunk is decoded for each record."""
    storage, settings, load = facts.storage, facts.settings, load_of(facts)
    if (
        storage is None
        or storage.chunk_records is None
        or load is None
        or not facts.data_limits
        or not _can_repack(storage)
    ):
        return None
    chunks = min(storage.chunk_records, storage.num_records / settings.batch_size)
    if not settings.shuffle or settings.block is not None or chunks <= 1:
        return None
    return Verdict(
        "repack_contiguous",
        f"raw records lie in chunks of {storage.chunk_records} and are read at random: up to {storage.chunk_records} are decoded for each "
        f"one wanted ({1e6 / (facts.rates.read or 1):,.0f} us a record)",
        "records that lie one after the other, not in chunks, are copied straight from a memory map",
        gain(facts, load_s=settings.batch_size * storage.record_bytes / GATHER_BYTES_PER_S),
        repack=_repack(storage),
    )


def order_block(facts: DiagnosisFacts) -> Verdict | None:
    """The same, mended by the order: neighbors together, so that a chunk or a place of the disk serves several records."""
    storage, settings, load = facts.storage, facts.settings, load_of(facts)
    if (
        storage is None
        or load is None
        or not facts.data_limits
        or not settings.shuffle
        or settings.block is not None
    ):
        return None
    slow_disk = (
        storage.disk in ("rotating", "network") and storage.num_bytes > facts.machine.memory_bytes
    )
    if storage.chunk_records is None and not slow_disk:
        return None
    block = storage.chunk_records or 1024
    what = (
        f"chunks of {block} records"
        if storage.chunk_records
        else f"{storage.num_bytes / 1e9:.0f} GB on a {storage.disk} disk"
    )
    read_s = settings.batch_size / (facts.rates.read or facts.rates.prepare or 1)
    return Verdict(
        "order_block",
        f"{what}, read at random",
        "blocks of neighbors are shuffled, and records within a window of blocks: each place is read once or twice an epoch, not for every record",
        gain(facts, load_s=max(load.load_s - read_s * (1 - 1 / min(block, 8)), 1e-9)),
        ("order=block", f"order.block_records={block}", "order.window_blocks=4"),
        learns=True,
    )


def stage_ram(facts: DiagnosisFacts) -> Verdict | None:
    """The disk is waited for, and the store fits in memory."""
    storage, rates, load = facts.storage, facts.rates, load_of(facts)
    if (
        storage is None
        or load is None
        or rates.read is None
        or not facts.data_limits
        or facts.settings.staged
    ):
        return None
    if (
        storage.form not in ("hdf5", "lmdb")
        or storage.disk == "memory"
        or storage.num_bytes > MEMORY_SHARE * facts.machine.memory_bytes
    ):
        return None
    if (storage.cached is not None and storage.cached > CACHED) or rates.read_cores > WAITS:
        return None
    read_s = facts.settings.batch_size / rates.read
    known = (
        "" if storage.cached is None else f", {100 * storage.cached:.0f} % of it in the page cache"
    )
    return Verdict(
        "stage_ram",
        f"reading waits for the disk ({storage.disk}{known}): {rates.read:,.0f} records/s, busy {100 * rates.read_cores:.0f} % of the time",
        f"{storage.num_bytes / 1e6:,.0f} MB copied into memory once, before the first step, and kept there whatever else wants the cache",
        gain(facts, load_s=max(load.load_s - read_s, 0) + read_s / 20),
        ("data.stage=ram",),
    )


RULES = (repack_smaller, repack_raw, pack_folder, repack_contiguous, order_block, stage_ram)
