"""Damage files of other programs, and give them to the command that reads or packs them.

Tar shards and their indexes, Parquet, Arrow, HDF5, LMDB, COCO's JSON, WAV and FLAC: bits are
flipped anywhere, pieces moved, numbers made extreme, ends cut off. What must hold: a documented
exit code and one line that names the file, or a result. A file that is only cut off gives an error,
or every record of the whole file.
"""

import io
import json
import os
import random
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import soundfile
import torch

from framework.data.hdf5 import hdf5_source
from framework.errors import PacelineError
from framework.media.sound_video import BadSound, read_sound, sound_header
from framework.store.open_store import open_store
from framework.store.tar_index import INDEX_SUFFIX, shard_index
from framework.transform import none, sound_window
from tests.conftest import make_context
from tests.contract.cases import encoded_records, jpeg, pixels, plain, write_parquet
from tests.faults import files, lanes
from tests.faults.guard import answered, fill_memory_with, guarded
from tests.faults.mutated import annotations, named
from tests.store.fuzz import mutations

COUNT = 9
TIME_NS = 10**18  # of every file's last change: an index belongs to one time
PACKED = "out.lmdb"
TRAIN = (
    *("train", "data.val=null", "prepare=null", f"batch_size={COUNT}", "max_steps=1"),
    *("device=cpu", "sink=[]", "workers.num=0", "model=resnet9", "model.width=4"),
    *("transform=random_resized_crop", "transform.size=[32,32]"),
)
PACK = ("pack", "output=lmdb", f"output.path={PACKED}", "workers=0")
SHARES = {"damaged": 0.35, "cut": 0.15, "decoded": 0.42, "heard": 0.08}  # of the attempts
LONGEST_END = 64  # bytes: cuts are as often there as anywhere else
EXTREMES = (0, 1, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Case(NamedTuple):
    """Files of another program, and a command that takes them. The first file is damaged."""

    contents: dict[str, bytes]
    words: tuple[str, ...]

    @property
    def victim(self) -> str:
        return next(iter(self.contents))

    @property
    def packs(self) -> bool:
        return self.words[0] == "pack"


def rows(times: int, seed: int) -> Iterator[lanes.Row]:
    """Yield two rows for each kind of file, and one for each way to read sounds."""
    each = {name: round(times * share) for name, share in SHARES.items()}
    ways = {
        "damaged": (damaged, "damaged in any way: one line that names it, or a result"),
        "cut": (cut, "cut off anywhere: one line that names it, or every record"),
    }
    for way, (attempt, words) in ways.items():
        for name in cases():
            count = max(1, each[way] // len(cases()))
            yield lanes.repeat(f"foreign: {name}, {words}", partial(attempt, name), count, seed)
    for attempt in (decoded, heard):
        count = max(1, each[attempt.__name__])
        yield lanes.repeat(f"foreign: {attempt.__doc__}", attempt, count, seed)


# ---------------------------------------------------------------------------------- whole files


@cache
def cases() -> dict[str, Case]:
    with tempfile.TemporaryDirectory() as folder:
        return _cases(Path(folder))


def _cases(folder: Path) -> dict[str, Case]:
    shard, index = _shard(folder)
    table = io.BytesIO()
    write_parquet(table, encoded_records(COUNT))
    about = {"coco.json": json.dumps(annotations()).encode(), "1.jpg": jpeg(1), "2.jpg": jpeg(2)}
    coco = ("input=coco", "input.path=coco.json", "input.images=.")
    of_records = 'input.fields={a: "*/a", t: "*/t", n: "*/n"}'
    of_keys = 'input.fields={image: "image-%09d", text: "text-%09d", label: "label-%09d"}'
    read = {
        "data=tar": ({"x.tar": shard}, "data.train=x.tar"),
        "data=tar, its index": (
            {f"x.tar{INDEX_SUFFIX}": index, "x.tar": shard},
            "data.train=x.tar",
        ),
        "data=parquet": ({"x.parquet": table.getvalue()}, "data.train=x.parquet"),
    }
    packed = {
        "input=tar": ({"x.tar": shard}, ("input.path=x.tar",)),
        "input=parquet": ({"x.parquet": table.getvalue()}, ("input.path=x.parquet",)),
        "input=parquet, Arrow": ({"x.arrow": _arrow()}, ("input.path=x.arrow",)),
        "input=hdf5, columns": ({"x.h5": _columns(folder)}, ("input.path=x.h5",)),
        "input=hdf5, groups": ({"x.h5": _groups(folder)}, ("input.path=x.h5", of_records)),
        "input=lmdb": ({"data.mdb": _environment(folder)}, ("input.path=data.mdb", of_keys)),
        "input=coco": (about, (*coco[1:], "input.fields=[boxes,label]")),
        "input=coco, masks": (about, (*coco[1:], "input.fields=[mask]")),
    }
    trained = {
        name: Case(contents, (*TRAIN, name.partition(",")[0], word))
        for name, (contents, word) in read.items()
    }
    return trained | {
        name: Case(contents, (*PACK, name.partition(",")[0], *words))
        for name, (contents, words) in packed.items()
    }


def _shard(folder: Path) -> tuple[bytes, bytes]:
    """Return a shard with names and times of every usual kind, and its index."""
    path = folder / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(COUNT):
            key = f"{number:06}" if number % 3 else "d" * 120 + f"/{number:06}"
            for suffix, data in (("jpg", jpeg(number)), ("cls", b"%d" % (number % 3))):
                entry = tarfile.TarInfo(f"{key}.{suffix}")
                entry.size, entry.mtime = len(data), 1.5 * (number % 2)  # a fraction needs pax
                archive.addfile(entry, io.BytesIO(data))
    os.utime(path, ns=(TIME_NS, TIME_NS))
    shard_index(str(path), keep=True)
    return path.read_bytes(), Path(f"{path}{INDEX_SUFFIX}").read_bytes()


def _arrow() -> bytes:
    """Return a stream of record batches, as ``datasets`` keeps it."""
    lists = [list(range(number)) for number in range(COUNT)]
    texts = [f"text {number}" for number in range(COUNT)]
    images = [jpeg(number) for number in range(COUNT)]
    table = pa.table({"image": images, "text": texts, "values": lists, "label": range(COUNT)})
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return file.getvalue()


def _columns(folder: Path) -> bytes:
    """Return an HDF5 file of records along the first axis of data sets of every layout."""
    path = folder / "columns.h5"
    lists = np.empty(COUNT, object)
    lists[:] = [np.arange(number, dtype="f4") for number in range(COUNT)]
    with h5py.File(path, "w") as file:
        file["image"] = np.stack([pixels(number) for number in range(COUNT)])
        numbers = np.arange(COUNT * 40, dtype=">f8").reshape(COUNT, 40)
        options = {"chunks": (4, 40), "compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("packed", data=numbers, **options)
        file.create_dataset("lists", data=lists, dtype=h5py.vlen_dtype(np.dtype("f4")))
        file["text"] = [f"text {number}" for number in range(COUNT)]
        file["label"] = np.arange(COUNT) % 3
    return path.read_bytes()


def _groups(folder: Path) -> bytes:
    """Return an HDF5 file with a group for each record: an array of any length, text, number."""
    path = folder / "groups.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(COUNT):
            file[f"record {number}/a"] = np.arange(10 * number, dtype="i2")
            file[f"record {number}/t"] = f"text {number}"
            file[f"record {number}/n"] = float(number)
    return path.read_bytes()


def _environment(folder: Path) -> bytes:
    """Return an LMDB file of images, some on pages of their own, texts, labels and a count."""
    path = folder / "data.mdb"
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24, lib_version=0) as file,
        file.begin(write=True) as transaction,
    ):
        for number in range(COUNT):
            key = b"%09d" % number
            transaction.put(b"image-" + key, jpeg(number, 16 + 60 * (number % 2), 80))
            transaction.put(b"text-" + key, b"a text of record %d" % number)
            transaction.put(b"label-" + key, b"%d" % (number % 3))
        transaction.put(b"num-samples", b"%d" % COUNT)
    return path.read_bytes()


# -------------------------------------------------------------------------------------- damage


def damaged(name: str, draw: random.Random) -> str:
    """Damage the first file of a case in one to three ways."""
    data = cases()[name].contents[cases()[name].victim]
    for _ in range(draw.choice((1, 1, 2, 3))):
        data = draw.choice((files.flipped, files.flipped, _moved, _extreme, files.repeated))(
            data, draw
        )
    return named(name, guarded(_answered, cases()[name], data))


def cut(name: str, draw: random.Random) -> str:
    """Cut off the end of the first file of a case."""
    case = cases()[name]
    data = shortened(case.contents[case.victim], draw)
    return named(name, guarded(_answered, case, data, _whole(name)))


def shortened(data: bytes, draw: random.Random) -> bytes:
    """Cut the end off ``data``: any length of it, a few bytes, or all but a few bytes."""
    few = draw.randint(1, min(LONGEST_END, len(data)))
    return data[: draw.choice((draw.randrange(len(data)), few, len(data) - few))]


def _moved(data: bytes, draw: random.Random) -> bytes:
    return next(mutations(data, 1, draw.choice((16, 512, 4096)), draw.randrange(1 << 30)))


def _extreme(data: bytes, draw: random.Random) -> bytes:
    """Write another number somewhere: two to eight bytes, in either byte order."""
    order, code = draw.choice("<>"), draw.choice("HIQ")
    number = draw.choice(EXTREMES) & ((1 << 8 * struct.calcsize(code)) - 1)
    at = draw.randrange(max(1, len(data) - 8))
    written = struct.pack(order + code, number)
    return data[:at] + written + data[at + len(written) :]


def _answered(case: Case, data: bytes, expected: Any = None) -> str:
    """Return what is wrong with the command's answer to the damaged file, or "" if it is right."""
    for name, content in case.contents.items():
        Path(name).write_bytes(data if name == case.victim else content)
        os.utime(name, ns=(TIME_NS, TIME_NS))
    outcome = answered(*case.words)
    errors = Path("err").read_text(errors="replace")
    if outcome or "error[" in errors:
        own = case.victim.removesuffix(INDEX_SUFFIX)
        return outcome or ("" if own in errors else f"does not name {own}: {errors[-300:]}")
    return _wrong_result(expected) if case.packs else ""


def _wrong_result(expected: Any) -> str:
    """Return what keeps the packed store from being the expected records, or ""."""
    store = open_store(PACKED)
    indices = torch.arange(store.manifest.num_records)
    records = store.read(indices)
    if store.damaged(indices, records):
        return "packed a damaged store"
    if expected is not None and plain(records) != expected:
        return f"{len(indices)} other records than those of the whole file, silently"
    return ""


@cache
def _whole(name: str) -> Any:
    """Return the records that a case packs, or None if it trains."""
    case = cases()[name]
    if not case.packs:
        return None
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outcome = guarded(_answered, case, case.contents[case.victim])
        store = open_store(PACKED)
        records = plain(store.read(torch.arange(store.manifest.num_records)))
        store.close()
        os.chdir(here)
    assert not outcome, outcome
    return records


# -------------------------------------------------------------------------------------- sounds


@cache
def sounds() -> dict[str, bytes]:
    """Return a sound of 2,400 frames in every way that WAV and FLAC keep one."""
    wave = 0.5 * np.sin(np.arange(2400) / 9)
    kinds = [("WAV", name) for name in soundfile.available_subtypes("WAV")]
    kinds += [("FLAC", name) for name in soundfile.available_subtypes("FLAC")]
    kinds.append(("WAVEX", "PCM_16"))
    written: dict[str, bytes] = {}
    for kind, subtype in kinds:
        for samples in (wave, np.stack([wave, -wave], 1)):
            file = io.BytesIO()
            try:
                soundfile.write(file, samples, 8000, format=kind, subtype=subtype)
            except soundfile.LibsndfileError:  # an encoding of one channel only, or of no writer
                continue
            written[f"{kind} {subtype} of {samples.ndim}"] = file.getvalue()
    return written


def decoded(draw: random.Random) -> str:
    """sounds, by our reader: the same samples from whatever lay in memory"""
    name = draw.choice([*sounds()])
    data = sounds()[name]
    if draw.random() < 0.3:
        data = shortened(data, draw)
        return named(f"{name} of {len(data)} bytes", guarded(_decoded, data, sounds()[name]))
    for _ in range(draw.choice((1, 1, 2, 3))):
        ways = (files.flipped, files.in_the_head, _moved, _extreme, _extreme_in_head)
        data = draw.choice(ways)(data, draw)
    return named(name, guarded(_decoded, data))


def _extreme_in_head(data: bytes, draw: random.Random) -> bytes:
    return _extreme(data[:64], draw) + data[64:]


def _decoded(data: bytes, whole: bytes | None = None) -> str:
    """Return what is wrong with reading a sound that was cut off from ``whole``, or ""."""
    calls: dict[str, Callable[[], Any]] = {
        "sound_header": lambda: np.array(sound_header(data)),
        "read_sound": lambda: read_sound(data),
        "a window": lambda: read_sound(data, 100, 300),
    }
    for name, call in calls.items():
        first, second = (_outcome(call, byte) for byte in (0x55, 0xAA))
        if not _are_equal(first, second):
            return f"{name} is not the same twice"
        if isinstance(first, str) and (not first or "\n" in first):
            return f"{name} says {first!r}"
    samples = _outcome(lambda: read_sound(data), 0)
    if whole is None or isinstance(samples, str):
        return ""
    return "" if np.array_equal(samples, read_sound(whole)) else f"{len(samples)} frames, silently"


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return type(first) is type(second) and first == second
    return np.array_equal(first, second, equal_nan=True)


def _outcome(call: Callable[[], Any], byte: int) -> Any:
    fill_memory_with(byte)
    try:
        return call()
    except BadSound as error:
        return str(error)


def heard(draw: random.Random) -> str:
    """sounds, packed by the command and read whole and in windows"""
    name = draw.choice([name for name in sounds() if name.endswith("of 1")])
    change = draw.choice((files.flipped, _moved, _extreme, _extreme_in_head, shortened))
    return named(f"{name} {change.__name__}", guarded(_heard, change(sounds()[name], draw)))


def _heard(data: bytes) -> str:
    Path("in/a").mkdir(parents=True)
    usual = sounds()["WAV PCM_16 of 1"]
    for name, content in (("0", usual), ("victim", data), ("z", usual)):
        Path(f"in/a/{name}.wav").write_bytes(content)
    outcome = answered(*PACK[:2], "output.path=out.h5", "output=hdf5", "workers=0", "input.path=in")
    errors = Path("err").read_text(errors="replace")
    if outcome or "error[" in errors:
        return outcome or ("" if "victim" in errors else f"does not name the file: {errors[-300:]}")
    for transform in (sound_window.SoundWindow(400), none.NoTransform()):
        source = hdf5_source("out.h5", context=make_context(3, transform=transform))
        try:
            for batch, *_ in source.batches(0):
                if len(batch["audio"]) != 3:
                    return f"a batch of {tuple(batch['audio'].shape)}"
        except PacelineError as error:
            if "\n" in str(error) or "victim" not in str(error):
                return f"not one line with the record: {error}"
        source.close()
    return ""
