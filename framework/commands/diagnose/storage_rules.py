"""Rules about how and where records are stored."""

from collections.abc import Sequence
from typing import Any

from framework.commands.diagnose.facts import DiagnosisFacts, Storage, gain
from framework.commands.diagnose.verdict import Repack, Verdict

# If the shorter side of an image is so many times longer than needed, decoding is mostly wasted.
LARGE = 2.0
# The share of free memory that a store may take.
MEMORY_SHARE = 0.5
# What one thread copies out of memory. Measured: benchmarks/README.md, D.
GATHER_BYTES_PER_S = 2e9
# Transforms that give every epoch the same pixels.
FIXED = {"resize", "center_crop"}
# If reading takes a smaller share of preparing a record, packing is not worth it.
READ_SHARE = 0.05


def repack_smaller(facts: DiagnosisFacts) -> Verdict | None:
    """Images are much larger than what the model sees."""
    storage = facts.slow_storage
    side = _side(facts)
    if storage is None or not storage.can_repack or side < LARGE:
        return None
    assert storage.image_size is not None
    height, width = storage.image_size
    raw = _raw_size(facts)
    record_ms = 1e3 * facts.load_s / facts.settings.batch_size
    options: dict[str, Any] = {"encode": "jpeg", "resize": _needed(facts)}
    advice = "Pack the images once at the size that is needed; a fraction is left to decode."
    load_s = facts.load_s / side**1.5
    if raw:
        options = {"encode": "raw", "size": raw, "layout": "hwc"}
        advice = "Pack the images once as pixels of the size that is needed, which are only copied."
        load_s = _gather_s(facts, _raw_bytes(storage, raw))
    return Verdict(
        "repack_smaller",
        f"Images of {height} x {width} pixels ({storage.record_bytes / 1e3:,.0f} kB) are read "
        f"whole, {record_ms:.1f} ms each, although the model sees only "
        f"{' x '.join(map(str, facts.settings.size or ()))}.",
        advice,
        gain(facts, load_s=load_s),
        repack=_repack(storage, **options),
        learns=not raw,
    )


def repack_raw(facts: DiagnosisFacts) -> Verdict | None:
    """Every epoch decodes the images again although their pixels fit in memory."""
    storage = facts.slow_storage
    raw = _raw_size(facts)
    if storage is None or not storage.can_repack or raw is None:
        return None
    if storage.encoding != "image" or _side(facts) >= LARGE:
        return None
    options: dict[str, Any] = {"encode": "raw", "size": raw}
    if facts.settings.transform != "none":
        options["layout"] = "hwc"
    record_ms = 1e3 * facts.load_s / facts.settings.batch_size
    return Verdict(
        "repack_raw",
        f"Every epoch decodes all images again: {record_ms:.2f} ms each.",
        f"Pack the images as pixels: they take {_raw_bytes(storage, raw) / 1e6:,.0f} MB, fit in "
        "memory, and are only copied. hdf5 copies raw records 3 times as fast as lmdb "
        "(benchmarks/README.md).",
        gain(facts, load_s=_gather_s(facts, _raw_bytes(storage, raw))),
        repack=_repack(storage, **options),
    )


def pack_folder(facts: DiagnosisFacts) -> Verdict | None:
    """Loose files: each record is opened, read and closed."""
    storage = facts.slow_storage
    rates = facts.rates
    if storage is None or storage.form != "folder" or rates.read is None:
        return None
    read_s = facts.settings.batch_size / rates.read
    share = read_s / facts.load_s
    if share < READ_SHARE:
        return None
    return Verdict(
        "pack_folder",
        f"The records are {storage.num_records:,} loose files: opening and reading a file takes "
        f"{1e6 / rates.read:.0f} us, {100 * share:.0f} % of preparing its record.",
        "Pack the files unchanged into one store, which is opened once. hdf5 is a memory map that "
        "any tool can open; lmdb is as fast for image files and slower for raw records "
        "(benchmarks/README.md).",
        gain(facts, load_s=max(facts.load_s - 0.9 * read_s, 0.1 * facts.load_s)),
        repack=_repack(storage, encode="keep"),
    )


def pack_dataset(facts: DiagnosisFacts) -> Verdict | None:
    """A Dataset of the user's makes every record anew, although all of them fit in memory."""
    storage = facts.slow_storage
    if storage is None or not storage.pack_words:
        return None
    if storage.num_bytes > MEMORY_SHARE * facts.machine.memory_bytes:
        return None
    frozen = ""
    if storage.draws:
        frozen = (
            " Its random changes would be packed as they are drawn once: move them to augment=."
        )
    record_ms = 1e3 * facts.load_s / facts.settings.batch_size
    return Verdict(
        "pack_dataset",
        f"Every epoch makes all items of {storage.path} again: {record_ms:.2f} ms each.",
        f"Pack the items: they take {storage.num_bytes / 1e6:,.0f} MB, fit in memory, and are only "
        f"copied.{frozen}",
        gain(facts, load_s=_gather_s(facts, storage.num_bytes)),
        edit=f"a store: {storage.pack_words}; then train with data=hdf5 data.train=packed.h5",
        learns=storage.draws,
    )


def repack_contiguous(facts: DiagnosisFacts) -> Verdict | None:
    """Compressed chunks are read at random: each record costs a whole chunk."""
    storage = facts.slow_storage
    settings = facts.settings
    if storage is None or storage.chunk_records is None or not storage.can_repack:
        return None
    chunks = min(storage.chunk_records, storage.num_records / settings.batch_size)
    if not settings.shuffle or settings.block is not None or chunks <= 1:
        return None
    return Verdict(
        "repack_contiguous",
        f"Chunks of {storage.chunk_records} raw records are read at random: each record "
        f"decompresses a whole chunk, {1e6 / (facts.rates.read or 1):,.0f} us a record.",
        "Pack the records without chunks; they are then copied straight from a memory map.",
        gain(facts, load_s=_gather_s(facts, storage.num_bytes)),
        repack=_repack(storage),
    )


def order_block(facts: DiagnosisFacts) -> Verdict | None:
    """Chunks or a slow disk are read at random, which an order of blocks avoids."""
    storage = facts.slow_storage
    settings = facts.settings
    if storage is None or not settings.shuffle or settings.block is not None:
        return None
    is_slow = storage.disk in ("rotating", "network")
    if storage.chunk_records:
        place = f"Chunks of {storage.chunk_records} records"
    elif is_slow and storage.num_bytes > facts.machine.memory_bytes:
        place = f"{storage.num_bytes / 1e9:.0f} GB on a {storage.disk} disk"
    else:
        return None
    block = storage.chunk_records or 1024
    read_s = settings.batch_size / (facts.rates.read or facts.rates.prepare or 1)
    return Verdict(
        "order_block",
        f"{place} are read at random.",
        "Shuffle blocks of neighbors, and records within a window of blocks: each place is then "
        "read once or twice an epoch instead of once per record.",
        gain(facts, load_s=max(facts.load_s - read_s * (1 - 1 / min(block, 8)), 1e-9)),
        ("order=block", f"order.block_records={block}", "order.window_blocks=4"),
        learns=True,
    )


PARTS = ("wait",)
RULES = (
    repack_smaller,
    repack_raw,
    pack_folder,
    pack_dataset,
    repack_contiguous,
    order_block,
)


def _repack(storage: Storage, **options: Any) -> Repack:
    source = "folder" if storage.form == "folder" else "store"
    val = (storage.val, storage.val_targets)
    follow = storage.follow_links
    return Repack(source, storage.path, storage.target, "hdf5", options, *val, follow_links=follow)


def _side(facts: DiagnosisFacts) -> float:
    """Return how many times longer than needed an image's shorter side is; 0 if unknown."""
    storage = facts.storage
    if storage is None or storage.image_size is None or facts.settings.size is None:
        return 0.0
    if storage.encoding != "image":
        return 0.0
    return min(storage.image_size) / _needed(facts)


def _needed(facts: DiagnosisFacts) -> int:
    """Return the least pixels of the shorter side. Random crops need twice their size."""
    size = facts.settings.size
    assert size is not None
    return max(size) * 8 // 7 if facts.settings.transform in FIXED else 2 * max(size)


def _raw_size(facts: DiagnosisFacts) -> list[int] | None:
    """Return the size at which stored pixels suffice for every epoch and fit in memory, if any."""
    storage = facts.storage
    settings = facts.settings
    if storage is None or storage.image_size is None:
        return None
    size = None
    if settings.transform == "resize":
        size = settings.size
    elif storage.even and settings.transform not in FIXED:
        size = storage.image_size
    if size is None or _raw_bytes(storage, size) > MEMORY_SHARE * facts.machine.memory_bytes:
        return None
    return list(size)


def _raw_bytes(storage: Storage, size: Sequence[int]) -> int:
    return storage.num_records * storage.channels * size[0] * size[1]


def _gather_s(facts: DiagnosisFacts, num_bytes: float) -> float:
    """Return seconds to copy a batch from a store of ``num_bytes``."""
    assert facts.storage is not None
    record_bytes = num_bytes / facts.storage.num_records
    return facts.settings.batch_size * record_bytes / GATHER_BYTES_PER_S
