"""Kill packings, and damage stores in many ways, and check that every wrong record is found.

Each format is tried with image files and with raw fields. Single bits are flipped anywhere in the
file, and files are cut to any length. A forked process reads them. The verdicts are:

- "refused": an error line.
- "found": the record is reported as damaged.
- "right": the bit belonged to no record.
- Anything else is a failure: a silently wrong record, another exception, a signal, a hang.

Tar archives have no checksums of their members' bytes, so bits are flipped only in headers and in
the index. Parquet's pages have checksums here, because its writers offer them as an option.
"""

import io
import os
import random
import signal
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import torch

from framework.contracts.records import Field
from framework.pack.pack_store import pack
from framework.store import hdf5_store, lmdb_store, parquet_store, tar_index, tar_store
from tests import conftest, forks
from tests.contract.cases import encoded_records, plain
from tests.faults.lanes import Row
from tests.input.inputs import content, packing
from tests.store.fuzz import flips, judge, truncations

COUNT = 300
FINE = ("refused", "found", "right")
IMAGES = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}
OPEN = {"h5": hdf5_store.HDF5Store, "lmdb": lmdb_store.LMDBStore}


def image_files() -> dict:
    """Return records whose byte strings fit inside a page of LMDB or take several pages."""
    draw = np.random.default_rng(0)
    return {
        "image": [draw.bytes(int(size)) for size in draw.integers(10, 9000, COUNT)],
        "label": np.arange(COUNT) % 3,
    }


KINDS = {"raw": (conftest.make_records(COUNT), conftest.FIELDS), "images": (image_files(), IMAGES)}


def campaign(
    ending: str, kind: str, num_flips: int, num_cuts: int, seed: int
) -> tuple[Counter, Counter]:
    """Damage a store, and return (verdicts of flips, verdicts of truncations)."""
    records, fields = KINDS[kind]
    path = conftest.write_store(f"whole.{ending}", records, fields)
    store = OPEN[ending](path)
    expected = plain(store.read(torch.arange(COUNT)))
    store.close()
    data = Path(path).read_bytes()
    os.unlink(path)
    flipped = judge(OPEN[ending], ending, flips(data, num_flips, seed=seed), expected, COUNT)
    cut = judge(OPEN[ending], ending, truncations(data, num_cuts, seed=seed), expected, COUNT)
    return Counter(flipped), Counter(cut)


def shard(path: str, records: dict) -> None:
    """Write images and labels with headers of every kind: plain, pax, and GNU's long names."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        pairs = zip(records["image"], records["label"].tolist(), strict=True)
        for number, (image, label) in enumerate(pairs):
            key = f"{number:06}" if number % 3 else "d" * 120 + f"/{number:06}"
            for suffix, data in (("jpg", image), ("cls", b"%d" % label)):
                entry = tarfile.TarInfo(f"{key}.{suffix}")
                entry.size, entry.mtime = len(data), 1.5 * (number % 2)  # a fraction needs pax
                archive.addfile(entry, io.BytesIO(data))


def flips_of_headers(path: str, data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield archives with one flipped bit outside their members' bytes."""
    index = tar_index.list_shard(path)
    is_header = np.ones(len(data), bool)
    for start, size in index.members[["start", "size"]].tolist():
        is_header[start : start + size] = False
    places, rng = np.flatnonzero(is_header), random.Random(seed)
    for _ in range(count):
        flipped = bytearray(data)
        flipped[rng.choice(places)] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def foreign_campaign(
    ending: str, num_flips: int, num_cuts: int, seed: int
) -> tuple[Counter, Counter]:
    """Damage another program's file, and return (verdicts of flips, verdicts of truncations)."""
    records, path = encoded_records(COUNT), f"whole.{ending}"
    if ending == "tar":
        shard(path, records)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({"image": records["image"], "label": records["label"]})
        parquet.write_table(table, path, row_group_size=50, write_page_checksum=True)
    open_file = {"tar": tar_store.TarStore, "parquet": parquet_store.ParquetStore}[ending]
    expected = plain(open_file(path).read(torch.arange(COUNT)))
    data = Path(path).read_bytes()
    damaged = flips(data, num_flips, seed=seed)
    if ending == "tar":
        damaged = flips_of_headers(path, data, num_flips, seed)
    flipped = judge(open_file, ending, damaged, expected, COUNT)
    cut = judge(open_file, ending, truncations(data, num_cuts, seed=seed), expected, COUNT)
    return Counter(flipped), Counter(cut)


def foreign_rows(each: int, seed: int) -> Iterator[Row]:
    """Yield rows on flips, and a twelfth as many truncations, of files read where they lie."""
    for ending, where in (("tar", "headers of a shard"), ("parquet", "a file of checked pages")):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            flipped, cut = foreign_campaign(ending, each, -(-each // 12), seed)
        flipped_s = time.perf_counter() - start
        yield _row(f"bits of {where} (.{ending}) flipped", flipped, FINE, seed, flipped_s)
        # what is cut off may be the zeros behind an archive's end mark
        yield _row(f"a .{ending} file cut off: refused", cut, ("refused", "right"), seed, 0.0)


def rows(flips_in_all: int, seed: int) -> Iterator[Row]:
    """Yield rows on flips, and a twelfth as many truncations, over formats and kinds."""
    yield from foreign_rows(-(-flips_in_all // 4), seed)
    each = -(-flips_in_all // (len(OPEN) * len(KINDS)))
    for ending in OPEN:
        for kind in KINDS:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder, chdir(folder):
                flipped, cut = campaign(ending, kind, each, -(-each // 12), seed)
            flipped_s = time.perf_counter() - start
            name = f"a store of {kind} (.{ending})"
            yield _row(f"bits of {name} flipped", flipped, FINE, seed, flipped_s)
            yield _row(f"{name} cut off: refused", cut, ("refused",), seed, 0.0)


def _row(fault: str, counts: Counter, fine: tuple[str, ...], seed: int, seconds: float) -> Row:
    wrong = [f"seed {seed}: {count} {name}" for name, count in counts.items() if name not in fine]
    note = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return Row(fault, counts.total(), wrong, seconds, note)


# ------------------------------------------------------------------------ killed packings


WAYS = [(path, one_file) for path in ("x.h5", "x.lmdb") for one_file in (True, False)]


def killed_after(path: str, one_file: bool, num_workers: int, seconds: float) -> bool:
    """Return whether the packing was still at work when it was killed."""
    packer = forks.forked(pack, packing(path, one_file=one_file), num_workers)
    packer.join(seconds)
    alive = packer.exitcode is None
    if alive:
        packer.kill()
    packer.join()
    return alive and packer.exitcode == -signal.SIGKILL


def packed_with_kills(
    path: str,
    one_file: bool,
    expected: object,
    longest_s: float,
    draw: random.Random,
    counts: Counter[str],
) -> None:
    """Pack once, with kills, and add the outcome to ``counts``."""
    kills = 0
    for _ in range(draw.randint(1, 3)):
        if not killed_after(path, one_file, draw.randint(0, 3), draw.uniform(0, longest_s)):
            break
        kills += 1
    packed = pack(packing(path, one_file=one_file), draw.randint(0, 3))
    counts.update({"packings": 1, "kills": kills, "resumed": int(kills > 0 and packed.resumed > 0)})
    counts["different"] += content(path) != expected
    counts["left behind"] += sorted(os.listdir()) != [path]


def packings(path: str, one_file: bool, kills: int, draw: random.Random) -> Counter[str]:
    """Pack until ``kills`` packings were killed. Return the counts."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        start = time.perf_counter()
        pack(packing(path, one_file=one_file), 1)
        longest_s, expected = 1.2 * (time.perf_counter() - start), content(path)
        while counts["kills"] < kills:
            packed_with_kills(path, one_file, expected, longest_s, draw, counts)
    return counts


def rows_of_packing(kills: int, seed: int) -> Iterator[Row]:
    """Spread ``kills`` over both formats, as one file and as a folder."""
    for path, one_file in WAYS:
        start = time.perf_counter()
        counts = packings(path, one_file, -(-kills // len(WAYS)), random.Random(seed))
        bad = [name for name in ("different", "left behind") if counts[name]]
        wrong = [f"seed {seed}: {counts[name]} {name}" for name in bad]
        form = "one file" if one_file else "a folder"
        fault = f"kill -9 in a packing to {path}, {form}: the same bytes"
        note = f"{counts['packings']} packings, {counts['resumed']} resumed"
        yield Row(fault, counts["kills"], wrong, time.perf_counter() - start, note)
