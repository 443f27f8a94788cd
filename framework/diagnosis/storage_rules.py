"""Rules about how and where records are stored, and about single records."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from framework.cli.arguments import quoted
from framework.contracts.waits import FEW, MOST_NAMED, named
from framework.diagnosis.facts import Facts, Storage
from framework.diagnosis.findings import Repack, Verdict
from framework.diagnosis.step_load import gain

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
DECODING = {"jpeg": "decode_jpeg", "png": "decode_png", "webp": "decode_webp"}
DECODING_OTHER = "decode_other"
# Transforms that give every epoch the same pixels.
FIXED = {"resize", "center_crop"}
# Transforms whose crops keep the scale of the image, so that it cannot be packed smaller.
UNSCALED = {"random_crop"}
# If reading takes a smaller share of preparing a record, packing is not worth it.
READ_SHARE = 0.05
# If slow records take a smaller share of a step, they are no cause.
LEAST_SHARE = 0.03
MOST_SHARE = 0.99
# Slow records that were read less often are not all known.
LEAST_READS = 3


def image_files(facts: Facts) -> Iterator[Verdict]:
    """Detect images that are much larger than what the model sees, or are decoded every epoch.

    PNG and WebP take longer to decode than JPEG, whose pixels are packed only if they fit in
    memory.
    """
    storage, side = facts.slow_storage, _side(facts)
    if storage is None or storage.image_size is None or not storage.can_repack:
        return
    packed = _packed(facts, storage)
    if side >= LARGE:
        rule = "repack_smaller"
        if storage.encoding == "raw":
            rule = "raw_too_large"
        elif storage.record_bytes >= HUGE_BYTES:
            rule = "huge_records"
        height, width = storage.image_size
        load_s = facts.load_s / side**1.5
        advice = "Pack the images once at the size that is needed; a fraction is left to decode."
        if packed.copied_s is not None:
            load_s = packed.copied_s
            advice = (
                "Pack the images once as pixels of the size that is needed, which are only copied."
            )
        yield Verdict(
            rule,
            f"Images of {height} x {width} pixels ({storage.record_bytes / 1e3:,.0f} kB) are read "
            f"whole, {_record_ms(facts):.1f} ms each, although the model sees only "
            f"{' x '.join(map(str, facts.settings.size or ()))}.",
            advice,
            gain(facts, load_s=load_s),
            repack=_repack(storage, **packed.options),
            learns=facts.settings.transform != "resize",
            disk_bytes=packed.num_bytes,
        )
        return
    if storage.encoding != "image" or _are_small_files(facts):
        return
    if _read_share(facts) > 1 - DECODE_SHARE:
        return
    if packed.copied_s is not None or storage.codec != "jpeg":
        load_s = facts.load_s / SLOWER_THAN_JPEG
        advice = "Pack the images as JPEGs, which are decoded faster and are a little lossy."
        if packed.copied_s is not None:
            load_s = packed.copied_s
            advice = "Pack the images as pixels, which fit in memory and are only copied."
        yield Verdict(
            DECODING.get(storage.codec, DECODING_OTHER),
            f"Every epoch decodes all {storage.codec or 'image'} files again: "
            f"{_record_ms(facts):.2f} ms each, {100 * (1 - _read_share(facts)):.0f} % of it "
            "decoding and transforming.",
            advice,
            gain(facts, load_s=load_s),
            repack=_repack(storage, **packed.options),
            learns=packed.copied_s is None or "resize" in packed.options,
            disk_bytes=packed.num_bytes,
        )


def loose_files(facts: Facts) -> Iterator[Verdict]:
    """Detect files each of which is opened, read and closed for its record."""
    storage, rates, share = facts.slow_storage, facts.rates, _read_share(facts)
    if storage is None or storage.form != "folder" or rates.read is None:
        return
    read_us = 1e6 / rates.read
    if _are_small_files(facts):
        options: dict[str, Any] = {"encode": "keep"}
        num_bytes = storage.num_bytes
        load_s = max(1 - 0.9 * share, 0.1) * facts.load_s
        if storage.image_size is not None:
            packed = _packed(facts, storage)
            if packed.copied_s is not None:
                options, num_bytes, load_s = packed.options, packed.num_bytes, packed.copied_s
        yield Verdict(
            "small_records",
            f"{storage.num_records:,} files of {storage.record_bytes / 1e3:.1f} kB: opening and "
            f"reading a file takes {read_us:.0f} us, {100 * share:.0f} % of preparing its record.",
            "Pack the files into one store, which is opened once and read a batch at a time.",
            gain(facts, load_s=load_s),
            repack=_repack(storage, **options),
            disk_bytes=num_bytes,
        )
    elif share >= READ_SHARE:
        read_s = facts.settings.batch_size / rates.read
        yield Verdict(
            "pack_folder",
            f"The records are {storage.num_records:,} loose files: opening and reading a file "
            f"takes {read_us:.0f} us, {100 * share:.0f} % of preparing its record.",
            "Pack the files unchanged into one store, which is opened once. hdf5 is a memory map "
            "that any tool can open; lmdb is as fast for image files and slower for raw records "
            "(benchmarks/README.md).",
            gain(facts, load_s=max(facts.load_s - 0.9 * read_s, 0.1 * facts.load_s)),
            repack=_repack(storage, encode="keep"),
            disk_bytes=storage.num_bytes,
        )


def _are_small_files(facts: Facts) -> bool:
    """Return whether opening and reading a tiny file takes much of preparing its record."""
    storage = facts.slow_storage
    if storage is None or storage.form != "folder" or not storage.can_repack:
        return False
    return storage.record_bytes < SMALL_BYTES and _read_share(facts) >= SMALL_SHARE


def datasets_and_chunks(facts: Facts) -> Iterator[Verdict]:
    """Detect items that are made again although all fit in memory, and what is read at random:
    compressed chunks, or a slow disk.
    """
    storage, settings, rates = facts.slow_storage, facts.settings, facts.rates
    if storage is None:
        return
    copied_s = settings.batch_size * storage.record_bytes / GATHER_BYTES_PER_S
    memory_bytes = facts.machine.memory_bytes
    if storage.pack_words and storage.num_bytes <= MEMORY_SHARE * memory_bytes:
        frozen = ""
        if storage.draws:
            frozen = (
                " Its random changes would be packed as they are drawn once: move them to augment=."
            )
        yield Verdict(
            "pack_dataset",
            f"Every epoch makes all items of {storage.path} again: {_record_ms(facts):.2f} ms "
            "each.",
            f"Pack the items: they take {storage.num_bytes / 1e6:,.0f} MB, fit in memory, and are "
            f"only copied.{frozen}",
            gain(facts, load_s=copied_s),
            edit=f"a store: {storage.pack_words}; then train with data=hdf5 data.train=packed.h5",
            learns=storage.draws,
        )
    if not settings.shuffle or settings.block is not None:
        return
    places = ""
    if storage.chunk_records:
        places = f"Chunks of {storage.chunk_records} records"
        chunks = min(storage.chunk_records, storage.num_records / settings.batch_size)
        if chunks > 1 and storage.can_repack:
            yield Verdict(
                "repack_contiguous",
                f"Chunks of {storage.chunk_records} raw records are read at random: each record "
                f"decompresses a whole chunk, {1e6 / (rates.read or 1):,.0f} us a record.",
                "Pack the records without chunks; they are then copied straight from a memory map.",
                gain(facts, load_s=copied_s),
                repack=_repack(storage),
                disk_bytes=storage.num_bytes,
            )
    elif storage.disk in ("rotating", "network") and storage.num_bytes > memory_bytes:
        places = f"{storage.num_bytes / 1e9:.0f} GB on a {storage.disk} disk"
    if places:
        block = storage.chunk_records or 1024
        read_s = settings.batch_size / (rates.read or rates.prepare or 1)
        yield Verdict(
            "order_block",
            f"{places} are read at random.",
            "Shuffle blocks of neighbors, and records within a window of blocks: each place is "
            "then read once or twice an epoch instead of once per record.",
            gain(facts, load_s=max(facts.load_s - read_s * (1 - 1 / min(block, 8)), 1e-9)),
            ("order=block", f"order.block_records={block}", "order.window_blocks=4"),
            learns=True,
        )


def slow_records(facts: Facts) -> Iterator[Verdict]:
    """Detect a few records that take many times as long as the others and delay their batches."""
    block = facts.slow_records
    if not block or not facts.data_limits or block["num_slow"] > FEW * block["num_records"]:
        return
    # The waiting was measured without steps, too. Their share of what data costs is taken to be
    # the same.
    share = (1 - 1 / facts.headroom) * block["saved_s"] / (block["wait_s"] or 1.0)
    if share < LEAST_SHARE:
        return
    rest = max(1 - block["slow_s"] / block["read_s"], 1 - MOST_SHARE)
    names = ", ".join(map(named, block["records"][:MOST_NAMED]))
    of_waiting = 100 * block["slow_wait_s"] / block["wait_s"]
    # A trial leaves the slow records out, if all are known and an override can do it.
    trial: tuple[str, ...] = ()
    is_store = facts.storage is not None and facts.storage.form != "dataset"
    if is_store and block["num_slow"] >= LEAST_READS * len(block["numbers"]):
        others = f"record not in {list(block['numbers'])}"
        if facts.settings.select is not None:
            others = f"({facts.settings.select}) and {others}"
        trial = (f"select={quoted(others)}",)
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


RULES = (image_files, loose_files, datasets_and_chunks, slow_records)


def _repack(storage: Storage, **options: Any) -> Repack:
    source = "folder" if storage.form == "folder" else "store"
    val = (storage.val, storage.val_targets)
    follow = storage.follow_links
    return Repack(source, storage.path, storage.target, "hdf5", options, *val, follow_links=follow)


def _side(facts: Facts) -> float:
    """Return how many times longer than needed an image's shorter side is; 0 if unknown."""
    storage, settings = facts.storage, facts.settings
    if storage is None or storage.image_size is None or settings.size is None:
        return 0.0
    if settings.transform in UNSCALED:
        return 0.0
    return min(storage.image_size) / _needed(facts)


def _needed(facts: Facts) -> int:
    """Return the least pixels of the shorter side. Random crops need twice their size."""
    most = max(facts.settings.size or (0,))
    return most * 8 // 7 if facts.settings.transform in FIXED else 2 * most


class _Packed(NamedTuple):
    """How the pixels that are needed would be packed."""

    options: dict[str, Any]
    num_bytes: float  # of the whole store
    copied_s: float | None  # to prepare a batch of raw pixels; None: they are JPEGs


def _packed(facts: Facts, storage: Storage) -> _Packed:
    """Pack raw pixels if they suffice for every epoch and fit, and JPEGs otherwise."""
    settings, image_size = facts.settings, storage.image_size or (1, 1)
    scale = max(1.0, _side(facts))
    size: list[int] | None = None
    if settings.transform == "resize" and settings.size is not None:
        size = list(settings.size)
    elif storage.even and settings.transform not in FIXED:
        size = [max(1, round(length / scale)) for length in image_size]
    most = min(MEMORY_SHARE * facts.machine.memory_bytes, DISK_SHARE * storage.free_bytes)
    if size is None or storage.num_records * storage.channels * math.prod(size) > most:
        options: dict[str, Any] = {"encode": "jpeg"}
        if scale > 1:
            options["resize"] = _needed(facts)
        num_pixels = math.prod(length / scale for length in image_size)
        return _Packed(options, storage.num_records * num_pixels * JPEG_BYTES, None)
    options = {"encode": "raw"}
    if settings.transform == "resize":
        options["size"] = size
    elif min(size) < min(image_size):
        options["resize"] = min(size)
    copied_s = 0.0
    if settings.transform != "none":
        options["layout"] = "hwc"
        copied_s = settings.batch_size * TRANSFORM_S
    num_bytes = float(storage.num_records * storage.channels * math.prod(size))
    copied_s += settings.batch_size * num_bytes / storage.num_records / GATHER_BYTES_PER_S
    return _Packed(options, num_bytes, copied_s)


def _record_ms(facts: Facts) -> float:
    """Return milliseconds to prepare a record in one thread."""
    return 1e3 * facts.load_s / facts.settings.batch_size


def _read_share(facts: Facts) -> float:
    """Return the share of preparing a record that reading takes; 0 if it was not measured."""
    rates = facts.rates
    if rates.read is None or rates.prepare is None:
        return 0.0
    return min(1.0, rates.prepare / rates.read)
