"""Rules about how and where records are stored."""

import math
from collections.abc import Sequence
from typing import Any

from framework.commands.diagnose.facts import DiagnosisFacts, Storage, gain
from framework.commands.diagnose.verdict import Repack, Verdict

# If the shorter side of an image is so many times longer than needed, decoding is mostly wasted.
LARGE = 2.0
HUGE_BYTES = 1e6  # of an image file
SMALL_BYTES = 8e3  # of a file
# If opening and reading takes such a share of preparing a tiny file, the number of files is to
# blame, and not their format.
SMALL_SHARE = 0.2
# If decoding and transforming takes a smaller share of preparing, no format is to blame.
DECODE_SHARE = 0.5
# The share of free memory, and of free disk space, that a store may take.
MEMORY_SHARE = 0.5
DISK_SHARE = 0.8
# What one thread copies out of memory. Measured: benchmarks/README.md, D.
GATHER_BYTES_PER_S = 2e9
TRANSFORM_S = 3e-5  # of a small array that needs no scaling, in one thread
JPEG_BYTES = 0.4  # of a JPEG of quality 90, per pixel of a photograph
# How many times as long as a JPEG a PNG or WebP file takes to decode, at least.
SLOWER_THAN_JPEG = 2.0
CODECS = {"jpeg", "png", "webp"}
# Transforms that give every epoch the same pixels.
FIXED = {"resize", "center_crop"}
# Transforms whose crops keep the scale of the image, so that it cannot be packed smaller.
UNSCALED = {"random_crop"}
# If reading takes a smaller share of preparing a record, packing is not worth it.
READ_SHARE = 0.05


def repack_smaller(facts: DiagnosisFacts) -> Verdict | None:
    """Detect images that are much larger than what the model sees."""
    storage = facts.slow_storage
    if storage is None or storage.encoding != "image" or storage.record_bytes >= HUGE_BYTES:
        return None
    return _smaller(facts, "repack_smaller")


def huge_records(facts: DiagnosisFacts) -> Verdict | None:
    """Detect image files of megabytes that are decoded although the model sees a small part."""
    storage = facts.slow_storage
    if storage is None or storage.encoding != "image" or storage.record_bytes < HUGE_BYTES:
        return None
    return _smaller(facts, "huge_records")


def raw_too_large(facts: DiagnosisFacts) -> Verdict | None:
    """Detect stored images with many more pixels than the model sees."""
    storage = facts.slow_storage
    if storage is None or storage.encoding != "raw":
        return None
    return _smaller(facts, "raw_too_large")


def _smaller(facts: DiagnosisFacts, rule: str) -> Verdict | None:
    """Return advice to pack images at the size that is needed, if they are much larger."""
    storage = facts.storage
    side = _side(facts)
    if storage is None or storage.image_size is None or not storage.can_repack or side < LARGE:
        return None
    height, width = storage.image_size
    options, num_bytes = _packed_pixels(facts)
    record_ms = 1e3 * facts.load_s / facts.settings.batch_size
    advice = "Pack the images once at the size that is needed; a fraction is left to decode."
    load_s = facts.load_s / side**1.5
    if options["encode"] == "raw":
        advice = "Pack the images once as pixels of the size that is needed, which are only copied."
        load_s = _copied_s(facts, num_bytes)
    return Verdict(
        rule,
        f"Images of {height} x {width} pixels ({storage.record_bytes / 1e3:,.0f} kB) are read "
        f"whole, {record_ms:.1f} ms each, although the model sees only "
        f"{' x '.join(map(str, facts.settings.size or ()))}.",
        advice,
        gain(facts, load_s=load_s),
        repack=_repack(storage, **options),
        learns=facts.settings.transform != "resize",
        disk_bytes=num_bytes,
    )


def decode_jpeg(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that every epoch decodes the JPEGs again although their pixels fit in memory."""
    return _decoding(facts, "decode_jpeg", "jpeg")


def decode_png(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that every epoch decodes PNGs, which takes longer than decoding JPEGs."""
    return _decoding(facts, "decode_png", "png")


def decode_webp(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that every epoch decodes WebP files, which takes longer than decoding JPEGs."""
    return _decoding(facts, "decode_webp", "webp")


def decode_other(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that every epoch decodes image files other than JPEG, PNG and WebP again."""
    storage = facts.storage
    if storage is None or storage.codec in CODECS:
        return None
    return _decoding(facts, "decode_other", storage.codec)


def _decoding(facts: DiagnosisFacts, rule: str, codec: str) -> Verdict | None:
    """Return advice against decoding files of ``codec``, if this is most of preparing a record."""
    storage = facts.slow_storage
    if storage is None or storage.encoding != "image" or not storage.can_repack:
        return None
    if storage.codec != codec or _side(facts) >= LARGE or small_records(facts):
        return None
    if _read_share(facts) > 1 - DECODE_SHARE:
        return None
    options, num_bytes = _packed_pixels(facts)
    load_s = facts.load_s / SLOWER_THAN_JPEG
    advice = "Pack the images as JPEGs, which are decoded faster and are a little lossy."
    if options["encode"] == "raw":
        load_s = _copied_s(facts, num_bytes)
        advice = "Pack the images as pixels, which fit in memory and are only copied."
    elif codec == "jpeg":
        return None
    record_ms = 1e3 * facts.load_s / facts.settings.batch_size
    return Verdict(
        rule,
        f"Every epoch decodes all {codec or 'image'} files again: {record_ms:.2f} ms each, "
        f"{100 * (1 - _read_share(facts)):.0f} % of it decoding and transforming.",
        advice,
        gain(facts, load_s=load_s),
        repack=_repack(storage, **options),
        learns=options["encode"] != "raw" or "resize" in options,
        disk_bytes=num_bytes,
    )


def small_records(facts: DiagnosisFacts) -> Verdict | None:
    """Detect many tiny files: opening and reading one takes much of preparing its record."""
    storage = facts.slow_storage
    if storage is None or storage.form != "folder" or not storage.can_repack:
        return None
    share = _read_share(facts)
    if storage.record_bytes >= SMALL_BYTES or share < SMALL_SHARE:
        return None
    options: dict[str, Any] = {"encode": "keep"}
    num_bytes = storage.num_bytes
    load_s = max(1 - 0.9 * share, 0.1) * facts.load_s
    if _raw_size(facts) is not None:
        options, num_bytes = _packed_pixels(facts)
        load_s = _copied_s(facts, num_bytes)
    return Verdict(
        "small_records",
        f"{storage.num_records:,} files of {storage.record_bytes / 1e3:.1f} kB: opening and "
        f"reading a file takes {1e6 / (facts.rates.read or math.inf):.0f} us, "
        f"{100 * share:.0f} % of preparing its record.",
        "Pack the files into one store, which is opened once and read a batch at a time.",
        gain(facts, load_s=load_s),
        repack=_repack(storage, **options),
        disk_bytes=num_bytes,
    )


def pack_folder(facts: DiagnosisFacts) -> Verdict | None:
    """Detect loose files, each of which is opened, read and closed for its record."""
    storage = facts.slow_storage
    rates = facts.rates
    share = _read_share(facts)
    if storage is None or storage.form != "folder" or rates.read is None:
        return None
    if share < READ_SHARE or small_records(facts):
        return None
    read_s = facts.settings.batch_size / rates.read
    return Verdict(
        "pack_folder",
        f"The records are {storage.num_records:,} loose files: opening and reading a file takes "
        f"{1e6 / rates.read:.0f} us, {100 * share:.0f} % of preparing its record.",
        "Pack the files unchanged into one store, which is opened once. hdf5 is a memory map that "
        "any tool can open; lmdb is as fast for image files and slower for raw records "
        "(benchmarks/README.md).",
        gain(facts, load_s=max(facts.load_s - 0.9 * read_s, 0.1 * facts.load_s)),
        repack=_repack(storage, encode="keep"),
        disk_bytes=storage.num_bytes,
    )


def pack_dataset(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a Dataset of the user that makes every record again although all fit in memory."""
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
    """Detect compressed chunks that are read at random, so that each record costs a chunk."""
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
        disk_bytes=storage.num_bytes,
    )


def order_block(facts: DiagnosisFacts) -> Verdict | None:
    """Detect chunks or a slow disk that are read at random, which an order of blocks avoids."""
    storage = facts.slow_storage
    settings = facts.settings
    if storage is None or not settings.shuffle or settings.block is not None:
        return None
    places = _slow_places(storage, facts.machine.memory_bytes)
    if not places:
        return None
    block = storage.chunk_records or 1024
    read_s = settings.batch_size / (facts.rates.read or facts.rates.prepare or 1)
    return Verdict(
        "order_block",
        f"{places} are read at random.",
        "Shuffle blocks of neighbors, and records within a window of blocks: each place is then "
        "read once or twice an epoch instead of once per record.",
        gain(facts, load_s=max(facts.load_s - read_s * (1 - 1 / min(block, 8)), 1e-9)),
        ("order=block", f"order.block_records={block}", "order.window_blocks=4"),
        learns=True,
    )


def _slow_places(storage: Storage, memory_bytes: float) -> str:
    """Return what makes reading at random slow; "" if nothing does."""
    is_slow = storage.disk in ("rotating", "network")
    if storage.chunk_records:
        return f"Chunks of {storage.chunk_records} records"
    if is_slow and storage.num_bytes > memory_bytes:
        return f"{storage.num_bytes / 1e9:.0f} GB on a {storage.disk} disk"
    return ""


PARTS = ("wait",)
RULES = (
    repack_smaller,
    huge_records,
    raw_too_large,
    decode_jpeg,
    decode_png,
    decode_webp,
    decode_other,
    small_records,
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
    settings = facts.settings
    if storage is None or storage.image_size is None or settings.size is None:
        return 0.0
    if settings.transform in UNSCALED:
        return 0.0
    return min(storage.image_size) / _needed(facts)


def _needed(facts: DiagnosisFacts) -> int:
    """Return the least pixels of the shorter side. Random crops need twice their size."""
    size = facts.settings.size
    assert size is not None
    return max(size) * 8 // 7 if facts.settings.transform in FIXED else 2 * max(size)


def _packed_pixels(facts: DiagnosisFacts) -> tuple[dict[str, Any], float]:
    """Return the options that pack the pixels that are needed, and the bytes of the whole store.

    Raw pixels are packed if they suffice for every epoch and fit, and JPEGs otherwise.
    """
    storage = facts.storage
    assert storage is not None
    assert storage.image_size is not None
    size = _raw_size(facts)
    if size is None:
        return _packed_jpegs(facts, storage.num_records, storage.image_size)
    options: dict[str, Any] = {"encode": "raw"}
    if facts.settings.transform == "resize":
        options["size"] = size
    elif min(size) < min(storage.image_size):
        options["resize"] = min(size)
    if facts.settings.transform != "none":
        options["layout"] = "hwc"
    return options, float(_raw_bytes(storage, size))


def _packed_jpegs(
    facts: DiagnosisFacts, num_records: int, image_size: Sequence[int]
) -> tuple[dict[str, Any], float]:
    scale = min(1.0, 1 / (_side(facts) or 1.0))
    height, width = (scale * length for length in image_size)
    options: dict[str, Any] = {"encode": "jpeg"}
    if scale < 1:
        options["resize"] = _needed(facts)
    return options, num_records * height * width * JPEG_BYTES


def _raw_size(facts: DiagnosisFacts) -> list[int] | None:
    """Return the size at which stored pixels suffice for every epoch and fit, if any."""
    storage = facts.storage
    settings = facts.settings
    if storage is None or storage.image_size is None:
        return None
    size: list[int] | None = None
    if settings.transform == "resize" and settings.size is not None:
        size = list(settings.size)
    elif storage.even and settings.transform not in FIXED:
        scale = max(1.0, _side(facts))
        size = [max(1, round(length / scale)) for length in storage.image_size]
    most = min(MEMORY_SHARE * facts.machine.memory_bytes, DISK_SHARE * storage.free_bytes)
    if size is None or _raw_bytes(storage, size) > most:
        return None
    return size


def _raw_bytes(storage: Storage, size: Sequence[int]) -> int:
    return storage.num_records * storage.channels * size[0] * size[1]


def _read_share(facts: DiagnosisFacts) -> float:
    """Return the share of preparing a record that reading takes; 0 if it was not measured."""
    rates = facts.rates
    if rates.read is None or rates.prepare is None:
        return 0.0
    return min(1.0, rates.prepare / rates.read)


def _copied_s(facts: DiagnosisFacts, num_bytes: float) -> float:
    """Return seconds to prepare a batch of raw pixels from a store of ``num_bytes``."""
    per_record_s = 0.0
    if facts.settings.transform != "none":
        per_record_s = TRANSFORM_S
    return _gather_s(facts, num_bytes) + facts.settings.batch_size * per_record_s


def _gather_s(facts: DiagnosisFacts, num_bytes: float) -> float:
    """Return seconds to copy a batch from a store of ``num_bytes``."""
    assert facts.storage is not None
    record_bytes = num_bytes / facts.storage.num_records
    return facts.settings.batch_size * record_bytes / GATHER_BYTES_PER_S
