"""A corpus of hostile files of other programs, each given to the command that reads or packs them.

Sizes that no file has, JSON without end, boxes and masks that cannot be, names and links that lead
out, pickled objects, bombs, names that come twice, wrong types, schemas without end, sounds whose
headers lie. What must hold: a documented exit code and one line that names the file, or a result;
nothing is executed, nothing beside it is touched, no crash, hang, or great hunger.
"""

import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import lmdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from framework.store.tar_index import INDEX_SUFFIX
from tests.contract.cases import jpeg
from tests.faults import foreign, guard, hostile, lanes, mutated
from tests.faults.files import png_bomb
from tests.media.test_sound_video import sound
from tests.store import test_hdf5_store as plants

WAIT_S = 60.0  # a machine may be busy; a hang that works is found after LIMIT_S
MANY = 100_000  # of what is repeated until it hurts
HUGE = (1 << 31) - 1
SECRET = "../outside.jpg"
NUMBERS = (float("nan"), float("inf"), -1.0, 1e308, 1 << 80, 1e-320)
STRANGERS = (None, True, "text", [], {}, [[1]], {"a": 1}, -1, 1 << 80, float("nan"))


class Bait(NamedTuple):
    """``plant`` writes files into the present folder and returns the words of a command."""

    name: str
    plant: Callable[[], tuple[str, ...]]
    victim: str  # what an error line must name


def rows(times: int, seed: int) -> Iterator[lanes.Row]:
    """Yield a row for each kind of bait, of about ``times`` baits, each at most once."""
    for kind, make in KINDS.items():
        own = make()
        count = max(1, min(len(own), round(len(own) * times / len(baits()))))
        first = baits().index(own[0])
        fault = f"hostile {kind}: one line that names the file, or a result; nothing executed"
        numbers = range(first, first + count)
        yield lanes.repeat_numbered(fault, lambda number: attempt(baits()[number]), numbers, seed)


def attempt(bait: Bait) -> str:
    """Plant a bait in a folder of its own. Return what went wrong, or "" if nothing did."""
    os.mkdir(hostile.BOX)
    os.chdir(hostile.BOX)
    Path(SECRET).write_bytes(b"secret")
    words = bait.plant()
    around = hostile.outside()
    outcome = guard.guarded(_answered, words, bait.victim, wait_s=WAIT_S)
    if list(Path("..").rglob(f"{hostile.CANARY}*")):
        outcome = "EXECUTED"
    elif hostile.outside() != around:
        outcome = f"FOLLOWED: {sorted(hostile.outside())} are around it now"
    os.chdir("..")
    return f"{bait.name}: {outcome}" if outcome else ""


def _answered(words: tuple[str, ...], victim: str) -> str:
    outcome = guard.answered(*words)
    errors = Path("err").read_text(errors="replace")
    is_about_choices = "error[C199]" in errors  # the file was read, and has no images to cut
    if not outcome and "error[" in errors and victim not in errors and not is_about_choices:
        return f"does not name {victim}: {errors[-300:]}"
    return outcome


# -------------------------------------------------------------------------------------- shards


def member(name: str, data: bytes = b"", **changes: Any) -> bytes:
    """Return a member of an archive; ``changes`` of its header are set after the sizes were."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for key, value in changes.items():
        setattr(entry, key, value)
    head = entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return head + data + bytes(-len(data) % 512)


def sized(name: str, field: bytes, data: bytes = b"x") -> bytes:
    """Return a member whose header has other bytes in place of the size. The checksum fits them."""
    head = bytearray(member(name, data))
    head[124:136] = field.ljust(12, b"\0")
    total = sum(head[:148]) + 8 * 32 + sum(head[156:512])
    head[148:156] = b"%06o\0 " % total
    return bytes(head)


def pax(**records: Any) -> bytes:
    """Return a header of extensions, which comes before a member."""
    content = b""
    for key, value in records.items():
        line = f" {key.replace('__', '.')}={value}\n".encode()
        size = len(line)
        while size != len(line) + len(str(size)):
            size = len(line) + len(str(size))
        content += str(size).encode() + line
    return member("pax", content, type=tarfile.XHDTYPE)


def shards() -> list[Bait]:
    good, end = member("1.jpg", jpeg(1)) + member("1.cls", b"0"), bytes(1024)
    base_256 = b"\x80" + b"\xff" * 11
    sparse = {"GNU__sparse__major": 0, "GNU__sparse__size": 1 << 60, "GNU__sparse__numblocks": 1}
    contents = {
        "size of 8 GiB": good + sized("2.jpg", b"77777777777"),
        "size in base 256": good + sized("2.jpg", base_256),
        "negative size": good + sized("2.jpg", b"\xff" * 12),
        "negative size that goes back": good
        + sized("2.jpg", (-2048).to_bytes(12, "big", signed=True)),
        "size that is no number": good + sized("2.jpg", b"99999999999"),
        "pax size": good + pax(size=10**30) + member("2.jpg", b"x"),
        "pax size that is no number": good + pax(size="x" * 99) + member("2.jpg", b"x"),
        "pax of a gigabyte": good + sized("pax", b"7777777777").replace(b"0\0", b"x\0", 1),
        "pax without end": good + member("p", b"99999999 path=x", type=tarfile.XHDTYPE) + end,
        "pax with its own charset": good
        + pax(hdrcharset="BINARY", path="\udcff.jpg".encode("utf-8", "surrogateescape").hex())
        + member("2.jpg", b"x"),
        "pax for all that follow": member(
            "g", b"30 path=../../outside.jpg.....\n"[:30], type=tarfile.XGLTYPE
        )
        + good,
        "a thousand pax": good + pax(path="x") * 1000 + member("2.jpg", b"x"),
        "long names for ever": good
        + member("././@LongLink", b"a" * MANY, type=tarfile.GNUTYPE_LONGNAME) * 20
        + member("2.jpg", b"x"),
        "sparse of an exabyte": good + pax(**sparse) + member("2.jpg", b"x"),
        "old sparse": good + member("2.jpg", b"x", type=tarfile.GNUTYPE_SPARSE),
        "up": good + member("../outside.jpg", b"x"),
        "absolute": good + member("/etc/x.jpg", b"x"),
        "up in the middle": good + member("a/../../outside.jpg", b"x"),
        "zero in a name": good + pax(path="a\0/../2.jpg") + member("2.jpg", b"x"),
        "terminal commands": good + member("\x1b[2J\r.jpg", b"x"),
        "not UTF-8": good + member("\udcff.jpg", b"x"),
        "link out": good + member("2.jpg", type=tarfile.SYMTYPE, linkname="../outside.jpg"),
        "hard link out": good + member("2.jpg", type=tarfile.LNKTYPE, linkname="../outside.jpg"),
        "hard link to itself": good + member("2.jpg", type=tarfile.LNKTYPE, linkname="2.jpg"),
        "device": good + member("2.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        "pipe": good + member("2.jpg", type=tarfile.FIFOTYPE),
        "folder of a size": good + member("2.jpg", b"x" * 600, type=tarfile.DIRTYPE),
        "unknown type": good + member("2.jpg", b"x", type=b"Q"),
        "twice": good + member("1.JPG", jpeg(2)),
        "two names, one record": good + member("1.png", jpeg(2)),
        "nothing but folders": member("a", type=tarfile.DIRTYPE),
        "many suffixes": b"".join(member(f"1.{n:x}") for n in range(70_000)),
        "many dots": good + member("." * 90, b"x"),
        "a label without end": good + member("2.jpg", jpeg(2)) + member("2.cls", b"9" * MANY),
        "an empty label": good + member("2.jpg", jpeg(2)) + member("2.cls"),
        "a negative label": good + member("2.jpg", jpeg(2)) + member("2.cls", b"-5"),
        "a label of zeros": good + member("2.jpg", jpeg(2)) + member("2.cls", bytes(20)),
        "a huge label": member("1.jpg", jpeg(1)) + member("1.cls", b"999999999999999999"),
        "a label far away": member("1.jpg", jpeg(1)) + member("1.cls", b"900000000"),
        "an image bomb": member("1.png", png_bomb()) + member("1.cls", b"0"),
        "an empty image": member("1.jpg") + member("1.cls", b"0"),
        "another archive behind it": good + end + good,
        "compressed": zlib.compress(good),
        "gzip": b"\x1f\x8b\x08" + good,
        "nothing": b"",
        "zeros": bytes(10240),
    }
    shard_baits = [
        Bait(f"shard {name}, {kind}", partial(_shard, content + end, kind), "x.tar")
        for name, content in contents.items()
        for kind in ("trained", "packed")
    ]
    arrays = {"pickled": hostile.numpy_objects(), "huge": npy((HUGE, HUGE))}
    arrays |= {"deep": npy("(" * 9999), "negative": npy((-5, 3))}
    arrays |= {"of texts": npy((1,), "<U9"), "of objects": npy((1,), "|O")}
    for name, data in arrays.items():
        content = member("1.npy", data) + member("1.cls", b"0") + end
        plant = partial(_shard, content, "packed", "input.fields={x: npy, label: cls}")
        shard_baits.append(Bait(f"shard array {name}", plant, "x.tar"))
    for name, make in INDEXES.items():
        shard_baits.append(
            Bait(f"shard index {name}", partial(_indexed, good + end, make), "x.tar")
        )
    return shard_baits


def npy(shape: Any, dtype: str = "<f4") -> bytes:
    """Return the header of an array, with a few numbers behind it."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)


def _shard(content: bytes, kind: str, *words: str) -> tuple[str, ...]:
    Path("x.tar").write_bytes(content)
    if kind == "trained":
        return (*foreign.TRAIN, "data=tar", "data.train=x.tar", *words)
    return (*foreign.PACK, "input=tar", "input.path=x.tar", *words)


def _indexed(content: bytes, plant: Callable[[Path], Any]) -> tuple[str, ...]:
    plant(Path(f"x.tar{INDEX_SUFFIX}"))
    return _shard(content, "trained")


INDEXES: dict[str, Callable[[Path], Any]] = {
    "is a link": lambda path: path.symlink_to("../outside.jpg"),
    "is a pipe": os.mkfifo,
    "is a folder": Path.mkdir,
    "is pickled": lambda path: path.write_bytes(pickle.dumps(hostile.CALLS["os.system"]())),
    "is deep": lambda path: path.write_bytes(b"PLTARIX1" + struct.pack("<I", 5000) + b"[" * 5000),
}


# -------------------------------------------------------------------------------------- tables


def compact(*fields: Any) -> bytes:
    """Return a struct of Thrift's compact protocol.

    Each field is (number, type, content), in ascending order.

    Source: "Thrift compact protocol encoding" of Apache Thrift.
    """
    data, last = b"", 0
    for number, kind, content in fields:
        data += bytes([(number - last) << 4 | kind]) + content
        last = number
    return data + b"\0"


def varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def text(words: bytes) -> bytes:
    return varint(len(words)) + words


def elements(items: list[bytes], kind: int = 12) -> bytes:
    """Return a list of Thrift's compact protocol, by default of structs."""
    return bytes([0xF0 | kind]) + varint(len(items)) + b"".join(items)


def group_of(children: int, name: bytes = b"g") -> bytes:
    """Return an element of a Parquet schema: an optional group with so many children."""
    return compact((3, 5, zigzag(1)), (4, 8, text(name)), (5, 5, zigzag(children)))


LEAF = compact((1, 5, zigzag(2)), (3, 5, zigzag(0)), (4, 8, text(b"label")))  # int64


def footer(schema: list[bytes], num_rows: int = 1, groups: bytes | None = None) -> bytes:
    """Return a Parquet file of nothing but its metadata."""
    about = compact(
        (1, 5, zigzag(2)),
        (2, 9, elements(schema)),
        (3, 6, zigzag(num_rows)),
        (4, 9, elements([]) if groups is None else groups),
    )
    return b"PAR1" + about + struct.pack("<I", len(about)) + b"PAR1"


def tables() -> list[Bait]:
    deep = [group_of(1, b"root"), *[group_of(1)] * MANY, LEAF]
    row_group = compact((1, 9, elements([])), (2, 6, zigzag(1 << 40)), (3, 6, zigzag(1 << 40)))
    files: dict[str, Callable[[], bytes]] = {
        "deep schema": lambda: footer(deep),
        "schema of itself": lambda: footer([group_of(3, b"root"), group_of(2), LEAF]),
        "children without end": lambda: footer([group_of(HUGE, b"root"), LEAF]),
        "children below zero": lambda: footer([group_of(-1, b"root"), LEAF]),
        "no schema": lambda: footer([]),
        "rows without columns": lambda: footer(
            [group_of(1, b"root"), LEAF], 1 << 40, elements([row_group])
        ),
        "rows without groups": lambda: footer([group_of(1, b"root"), LEAF], 1 << 62),
        "rows below zero": lambda: footer([group_of(1, b"root"), LEAF], -5),
        "two columns of one name": lambda: footer([group_of(2, b"root"), LEAF, LEAF], 0),
        "a list without end": lambda: footer([], 1, bytes([0xFC]) + varint(HUGE)),
        "structs without end": lambda: b"PAR1" + b"\x1c" * MANY + struct.pack("<I", MANY) + b"PAR1",
        "a footer of 4 GiB": lambda: b"PAR1" + bytes(99) + b"\xff\xff\xff\xffPAR1",
        "a footer below its file": lambda: b"PAR1" + bytes(99) + b"\xff\xff\xff\x7fPAR1",
        "encrypted": lambda: b"PARE" + bytes(99) + struct.pack("<I", 50) + b"PARE",
        "nothing": lambda: b"",
        "its mark alone": lambda: b"PAR1",
        "a bomb of numbers": lambda: table(label=_zeros(pa.int64(), 60)),
        "a bomb of texts": lambda: table(text=_repeated(pa.string(), b"x" * (1 << 20), 20_000)),
        "a bomb of images": lambda: table(
            image=_repeated(pa.binary(), jpeg(0) + bytes(1 << 20), 20_000)
        ),
        "a long list": lambda: table(x=pa.chunked_array([_lists(20)])),
        "lists in lists": lambda: table(x=pa.array([None], _nested(200))),
        "huge fixed lists": lambda: table(x=pa.array([None], pa.list_(pa.int8(), HUGE // 2))),
        "a fixed list of nothing": lambda: table(x=pa.array([[]], pa.list_(pa.int8(), 0))),
        "nothing but nulls": lambda: table(x=pa.array([None] * 3, pa.int64())),
        "a null column": lambda: table(x=pa.nulls(3)),
        "decimals": lambda: table(x=pa.array([1, 2], pa.decimal256(76, 0))),
        "far labels": lambda: table(label=pa.array([0, 1 << 62])),
        "labels below zero": lambda: table(label=pa.array([-5, 1])),
        "unsigned labels": lambda: table(label=pa.array([(1 << 64) - 1], pa.uint64())),
        "images of other files": lambda: table(image=pa.array([{"bytes": None, "path": SECRET}])),
        "images of nothing": lambda: table(image=pa.array([b"", b""])),
        "an image bomb": lambda: table(image=pa.array([png_bomb()])),
        "a name that is a command": lambda: table(**{"\x1b[2J\n": pa.array([1])}),
        "a name of nothing": lambda: table(**{"": pa.array([1])}),
        "no column": table,
        "metadata that is no JSON": lambda: about(b"{" * 9999),
        "deep metadata": lambda: about(b'{"info":' * 9999),
        "metadata of wrong types": lambda: about(
            b'{"info": {"features": {"label": {"names": {"a": 1}}}}}'
        ),
        "classes that repeat": lambda: about(
            b'{"info": {"features": {"label": {"names": ["a", "a"]}}}}'
        ),
        "classes of half characters": lambda: about(
            b'{"info": {"features": {"label": {"names": ["\\ud800"]}}}}'
        ),
        "a foreign extension": lambda: table(
            x=pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
        ),
    }
    table_baits = [
        Bait(f"table {name}, {kind}", partial(_table, make, "x.parquet", kind), "x.parquet")
        for name, make in files.items()
        for kind in ("trained", "packed")
    ]
    arrows: dict[str, Callable[[], bytes]] = {
        "a message of 2 GiB": lambda: b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(99),
        "a message below zero": lambda: b"\xff\xff\xff\xff\xff\xff\xff\xff" + bytes(99),
        "an end alone": lambda: b"\xff\xff\xff\xff\0\0\0\0",
        "wild offsets": lambda: wild_arrow(1 << 30),
        "offsets below zero": lambda: wild_arrow(-8),
    }
    return table_baits + [
        Bait(f"table of Arrow {name}", partial(_table, make, "x.arrow", "packed"), "x.arrow")
        for name, make in arrows.items()
    ]


def table(**columns: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, row_group_size=1 << 40, compression="zstd")
    return file.getvalue()


def about(metadata: bytes) -> bytes:
    file = io.BytesIO()
    rows_of_labels = pa.table({"label": pa.array([0, 1])})
    parquet.write_table(rows_of_labels.replace_schema_metadata({b"huggingface": metadata}), file)
    return file.getvalue()


def _zeros(kind: Any, millions: int) -> Any:
    """Return millions of zeros that share the memory of the first million."""
    return pa.chunked_array([pa.array(np.zeros(1_000_000, np.int64), kind)] * millions)


def _repeated(kind: Any, value: bytes, count: int) -> Any:
    """Return one long value ``count`` times, as a dictionary of one entry."""
    indices = pa.array(np.zeros(count, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value]).cast(kind))


def _lists(millions: int) -> Any:
    """Return one list of so many million zeros."""
    values = pa.array(np.zeros(millions * 1_000_000, np.int8))
    return pa.ListArray.from_arrays([0, len(values)], values)


def _nested(depth: int) -> Any:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def wild_arrow(offset: int) -> bytes:
    """Return an Arrow stream whose text ends at another ``offset``."""
    batch = pa.table({"text": ["x" * 77]})
    file = io.BytesIO()
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_table(batch)
    return file.getvalue().replace(struct.pack("<2i", 0, 77), struct.pack("<2i", 0, offset))


def _table(make: Callable[[], bytes], name: str, kind: str) -> tuple[str, ...]:
    Path(name).write_bytes(make())
    if kind == "trained":
        return (*foreign.TRAIN, "data=parquet", f"data.train={name}")
    return (*foreign.PACK, "input=parquet", f"input.path={name}")


# --------------------------------------------------------------------------------- annotations


def annotation_files() -> list[Bait]:
    """Return baits: changes of ``annotations``, and texts that are no annotations."""
    return [*_wrong_values(), *_wrong_numbers(), *_wrong_regions(), *_wrong_files()]


def _coco(name: str, content: Any, field: str = "boxes,label") -> Bait:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    # a name that could be one is that of a missing image
    victim = "" if "file_name" in name else "coco.json"
    return Bait(f"annotations {name}", partial(_annotated, data, field), victim)


def _changed(name: str, place: str, key: str, value: Any, field: str = "boxes,label") -> Bait:
    about = mutated.annotations()
    about[place][0][key] = value
    return _coco(f"{place} {key} = {str(value)[:60]} ({name})", about, field)


def _wrong_values() -> Iterator[Bait]:
    keys = {
        "images": ("id", "height", "width", "file_name"),
        "annotations": ("image_id", "category_id", "iscrowd"),
        "categories": ("id", "name"),
    }
    for value in (*STRANGERS, HUGE, 0, 0.5):
        for place, names in keys.items():
            for key in names:
                yield _changed(type(value).__name__, place, key, value)
        yield _changed("mask", "annotations", "segmentation", value, "mask")
    names = (SECRET, "/etc/hostname", "/dev/zero", "a\0b", "x" * 5000, "..", "", "\ud800.jpg")
    for name in (*names, "pipe", "folder", "\x1b[2J.jpg", "~/x", "$HOME", "http://x/y.jpg"):
        yield _changed("name", "images", "file_name", name)
    for key in ("images", "annotations", "categories"):
        yield _coco(f"without {key}", {k: v for k, v in mutated.annotations().items() if k != key})
        for value in STRANGERS[:7]:
            yield _coco(f"{key} = {value}", {**mutated.annotations(), key: value})


def _wrong_numbers() -> Iterator[Bait]:
    for number in NUMBERS:
        yield _changed("box", "annotations", "bbox", [number] * 4)
        yield _changed("box", "annotations", "bbox", [0, 0, number, number])
        yield _changed("polygon", "annotations", "segmentation", [[number] * 6], "mask")
        yield _changed("counts", "annotations", "segmentation", _lengths([number, 1]), "mask")
    for box in ([], [1, 2, 3], [1] * 5, "1234", {"x": 1}, [[1], 2, 3, 4], ["1"] * 4):
        yield _changed("box", "annotations", "bbox", box)


def _wrong_regions() -> Iterator[Bait]:
    regions = {
        "negative": _lengths([-5, 197]),
        "huge": _lengths([1 << 62, 1 << 62]),
        "of zeros": _lengths([0] * MANY + [192]),
        "too many": _lengths([1] * MANY),
        "text": _lengths("0" * MANY),
        "text without end": _lengths("o" * 99),
        "text of huge numbers": _lengths("oooooooooooo0"),
        "text of other letters": _lengths("\udcff\x00é日"),
        "another size": {"size": [1 << 31, 1 << 31], "counts": [1 << 62]},
        "no size": {"counts": [192]},
        "size of texts": {"size": ["16", "12"], "counts": [192]},
        "many points": [[float(n % 17) for n in range(2 * MANY)]],
        "many polygons": [[1, 1, 9, 1, 9, 9]] * MANY,
        "odd": [[1, 2, 3, 4, 5, 6, 7]],
        "of texts": [["1"] * 6],
        "deep": [[[[1]]]],
    }
    for name, region in regions.items():
        yield _changed(f"region {name}", "annotations", "segmentation", region, "mask")


def _wrong_files() -> Iterator[Bait]:
    whole = mutated.annotations()
    data = json.dumps(whole).encode()
    texts = {
        "deep": b"[" * MANY,
        "deep objects": b'{"images":' * MANY,
        "a long number": b'{"images": [{"id": ' + b"9" * MANY + b"}]}",
        "a list": b"[]",
        "a number": b"5",
        "nothing": b"",
        "twice": b'{"images": [], "images": [{"id": 1}], "annotations": [], "categories": []}',
        "UTF-16": json.dumps(whole).encode("utf-16"),
        "BOM": b"\xef\xbb\xbf" + data,
        "not UTF-8": b'{"images": "\xff\xfe"}',
        "pickled": pickle.dumps(hostile.CALLS["os.system"]()),
        "half": data[:-20],
        "behind": data + b"{}",
    }
    for name, content in texts.items():
        yield _coco(f"text {name}", content)
    yield _coco("an image twice", {**whole, "images": whole["images"] * 2})
    yield _coco("a category twice", {**whole, "categories": whole["categories"] * 2})
    classes = [{"id": number, "name": f"class {number}"} for number in range(3000)]
    yield _coco("classes beyond a mask", {**whole, "categories": classes}, "mask")
    objects = whole["annotations"][:1] * 20_000
    yield _coco("objects without end", {**whole, "annotations": objects}, "mask")


def _lengths(counts: Any) -> dict[str, Any]:
    return {"size": [16, 12], "counts": counts}


def _annotated(data: bytes, field: str) -> tuple[str, ...]:
    Path("coco.json").write_bytes(data)
    os.mkfifo("pipe")
    os.mkdir("folder")
    for number in (1, 2):
        Path(f"{number}.jpg").write_bytes(jpeg(number))
    fields = f"input.fields=[{field}]"
    return (*foreign.PACK, "input=coco", "input.path=coco.json", "input.images=.", fields)


# ------------------------------------------------------------------------------------ HDF5, LMDB


def hdf5_files() -> list[Bait]:
    big = h5py.vlen_dtype(np.dtype("f4"))
    plain: dict[str, Callable[[h5py.File], Any]] = {
        "a shape without data": _dataset("x", (1 << 40,), "f4", chunks=(1 << 16,)),
        "a chunk of 2 GiB": _dataset("x", (1 << 31,), "u1", chunks=(1 << 31,), compression="gzip"),
        "zeros, compressed": _dataset(
            "x", data=np.zeros((32, 1 << 20), "u1"), chunks=(32, 1 << 20), compression=9
        ),
        "no rows": _dataset("x", (0, 5), "f4"),
        "rows of nothing": _dataset("x", (1 << 30, 0), "f4"),
        "empty": _dataset("x", data=h5py.Empty("f4")),
        "a scalar": _dataset("x", data=5),
        "32 dimensions": _dataset("x", data=np.zeros((1,) * 32)),
        "compound": _dataset("x", data=np.zeros(3, [("a", "f4"), ("b", "i4")])),
        "references": lambda f: f.create_dataset("x", data=[f.ref], dtype=h5py.ref_dtype),
        "region references": _dataset("x", (3,), h5py.regionref_dtype),
        "pickled": _dataset("x", data=np.void(pickle.dumps(hostile.CALLS["os.system"]()))),
        "pickled rows": _dataset(
            "x", data=np.array([np.void(pickle.dumps(hostile.CALLS["os.system"]()))])
        ),
        "enumeration": _dataset("x", data=np.zeros(3, "i1"), dtype=h5py.enum_dtype({"A": 0}, "i1")),
        "long floats": _dataset("x", data=np.zeros(3, "g")),
        "complex": _dataset("x", data=np.zeros(3, "c16")),
        "lists of lists": _dataset("x", (3,), h5py.vlen_dtype(big)),
        "texts that are none": _dataset("x", data=[b"\xff\xfe"] * 3, dtype=h5py.string_dtype()),
        "a label far away": _dataset("label", data=np.array([0, 1 << 62])),
        "a label below zero": _dataset("label", data=np.array([0, -5])),
        "a label that is NaN": _dataset("label", data=np.array([np.nan])),
        "labels of texts": lambda f: f.create_dataset(
            "label", data=[f"{n}" * 99 for n in range(2000)]
        ),
        "soft link in a circle": lambda f: f.__setitem__("x", h5py.SoftLink("/x")),
        "link to another file": lambda f: f.__setitem__(
            "x", h5py.ExternalLink("../outside.jpg", "x")
        ),
        "group in itself": lambda f: f.create_group("a").__setitem__("x", f["/"]),
        "deep groups": _dataset("a/" * 2000 + "x", data=np.zeros(3)),
        "a name that is a command": _dataset("\x1b[2J\n", data=np.zeros(3)),
        "a name that leads out": _dataset("..", data=np.zeros(3)),
        "bytes as a name": _dataset(b"\xff\xfe", data=np.zeros(3)),
        "nothing": lambda f: None,
        "other lengths": lambda f: [
            f.create_dataset(n, data=np.zeros(s)) for n, s in (("x", 3), ("y", 4))
        ],
        "an image bomb": lambda f: f.create_dataset(
            "x", (1,), h5py.vlen_dtype(np.dtype("u1"))
        ).__setitem__(0, np.frombuffer(png_bomb(), "u1")),
    }
    hdf5_baits = [
        Bait(f"HDF5 {name}", partial(_hdf5, plant), "x.h5") for name, plant in plain.items()
    ]
    hdf5_baits += [
        Bait(f"HDF5 {plant.__name__}", partial(_hdf5, partial(plant, name="x")), "x.h5")
        for plant in plants.PLANTS
    ]
    heap = partial(_hdf5, plain["labels of texts"], patched=True)
    hdf5_baits.append(Bait("HDF5 heap of huge texts", heap, "x.h5"))
    patterns = ("*", "*/*", "*" * 30, "*@*", "x@", "(", "*\\", "/", "", "**/x")
    for pattern in patterns:
        fields = f"input.fields={{x: '{pattern}'}}"
        plant = partial(_hdf5, lambda f: f.create_dataset("a/x", data=np.zeros(3)), fields)
        hdf5_baits.append(Bait(f"HDF5 pattern {pattern!r}", plant, ""))
    return hdf5_baits


def _dataset(name: Any, *arguments: Any, **options: Any) -> Callable[[h5py.File], Any]:
    return lambda file: file.create_dataset(name, *arguments, **options)


def _hdf5(plant: Callable[[Any], Any], *words: str, patched: bool = False) -> tuple[str, ...]:
    with h5py.File("x.h5", "w") as file:
        plant(file)
    if patched:  # the lengths of texts in the heap
        data = Path("x.h5").read_bytes()
        Path("x.h5").write_bytes(data.replace(struct.pack("<I", 99), struct.pack("<I", HUGE)))
    return (*foreign.PACK, "input=hdf5", "input.path=x.h5", *words)


def lmdb_files() -> list[Bait]:
    fields = 'input.fields={image: "image-%d", label: "label-%d"}'
    good = {b"image-0": jpeg(0), b"label-0": b"0"}
    values: dict[str, Mapping[bytes, bytes]] = {
        "pickled": {b"image-1": hostile.numpy_objects(), b"label-1": b"0"},
        "huge array": {b"image-1": npy((HUGE, HUGE)), b"label-1": b"0"},
        "image bomb": {b"image-1": png_bomb(), b"label-1": b"0"},
        "empty": {b"image-1": b"", b"label-1": b""},
        "label far away": {b"image-1": jpeg(1), b"label-1": b"999999999999999999"},
        "label of NaN": {b"image-1": jpeg(1), b"label-1": b"nan"},
        "label of zeros": {b"image-1": jpeg(1), b"label-1": bytes(9)},
        "number without end": {b"image-" + b"9" * 400: jpeg(1), b"label-" + b"9" * 400: b"1"},
        "numbers of other writings": {"image-٣".encode(): jpeg(1), "label-٣".encode(): b"1"},
        "one record twice": {b"image-00": jpeg(1), b"label-00": b"1"},
        "keys of zeros": {b"\0" * 200: b"x", b"\n\x1b[2J": b"x"},
        "a record of one field": {b"image-1": jpeg(1)},
    }
    lmdb_baits = [
        Bait(f"LMDB {name}", partial(_lmdb, {**good, **more}, fields), "x.lmdb")
        for name, more in values.items()
    ]
    for number, name in enumerate(("root of itself", "values that overlap", "a tree of one leaf")):
        lmdb_baits.append(Bait(f"LMDB {name}", partial(_wild_lmdb, number), "x.lmdb"))
    return lmdb_baits


def _lmdb(values: Mapping[bytes, bytes], *words: str) -> tuple[str, ...]:
    with (
        lmdb.open("x.lmdb", subdir=False, lock=False, map_size=1 << 26, lib_version=0) as file,
        file.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key, value)
    return (*foreign.PACK, "input=lmdb", "input.path=x.lmdb", *words)


def _wild_lmdb(number: int) -> tuple[str, ...]:
    """Write a tree of many small values, change it by hand, and return the words that pack it."""
    words = _lmdb({b"%06d" % n: b"x" * 20 for n in range(20_000)}, "input.fields={x: '%d'}")
    data = bytearray(Path("x.lmdb").read_bytes())
    page = struct.unpack_from("<I", data, 40)[0]
    newest = max((0, page), key=lambda start: struct.unpack_from("<Q", data, start + 144)[0])
    root = struct.unpack_from("<Q", data, newest + 128)[0]
    starts = (
        range(page * root, page * (root + 1)) if number != 1 else range(2 * page, len(data), page)
    )
    for start in starts if number == 1 else [page * root]:
        kind, lower = struct.unpack_from("<HH", data, start + 10)
        for slot in range(start + 16, start + lower, 2) if kind in (1, 2) else ():
            node = start + struct.unpack_from("<H", data, slot)[0]
            if number == 1 and kind == 2:
                struct.pack_into("<HH", data, node, 0xFFFF, (len(data) - node) >> 17)
            elif number != 1 and kind == 1:
                child = (
                    root
                    if number == 0
                    else struct.unpack_from(
                        "<H", data, start + struct.unpack_from("<H", data, start + 16)[0]
                    )[0]
                )
                struct.pack_into("<HHH", data, node, child, 0, 0)
    Path("x.lmdb").write_bytes(data)
    return words


# -------------------------------------------------------------------------------------- sounds


def sound_files() -> list[Bait]:
    wave, flac = sound(300), sound(300, kind="FLAC")
    files: dict[str, bytes] = {}
    for name, place, code in (
        *(("size of the file", 4, "<I"), ("size of its format", 16, "<I"), ("format", 20, "<H")),
        *(("channels", 22, "<H"), ("rate", 24, "<I"), ("bytes per second", 28, "<I")),
        *(("bytes per frame", 32, "<H"), ("bits per sample", 34, "<H")),
        ("size of its samples", 40, "<I"),
    ):
        most = (1 << 8 * struct.calcsize(code)) - 1
        for number in (0, 1, 3, 0x55, most >> 1, most):
            data = bytearray(wave)
            struct.pack_into(code, data, place, number)
            files[f"WAV {name} = {number:#x}"] = bytes(data)
    for name, place, size in (
        *(("smallest block", 8, 2), ("largest block", 10, 2), ("smallest frame", 12, 3)),
        *(("largest frame", 15, 3), ("rate, channels, bits, frames", 18, 8)),
        *(("size of its metadata", 5, 3), ("kind of its metadata", 4, 1)),
    ):
        for byte in (b"\0", b"\x7f", b"\xff", b"\x0f", b"\xf0"):
            changed = flac[:place] + byte * size + flac[place + size :]
            files[f"FLAC {name} = {byte.hex()}"] = changed
    files |= {
        "WAV of many chunks": wave[:12] + b"junk\0\0\0\0" * MANY + wave[12:],
        "WAV with a chunk of 4 GiB": wave[:12] + b"LIST\xff\xff\xff\xff" + wave[12:],
        "WAV in itself": wave[:36] + b"LIST" + struct.pack("<I", len(wave)) + wave + wave[36:],
        "WAV with texts": wave + b"LIST\xff\xff\xff\x7fINFO" + b"IART\xff\xff\xff\x7f" * 99,
        "WAV with a long text": wave + b"LIST" + struct.pack("<I", MANY) + b"INFO" + b"x" * MANY,
        "WAV with cues": wave + b"cue \xff\xff\xff\x7f\xff\xff\xff\x7f" + bytes(999),
        "WAV without format": wave[:12] + wave[36:],
        "WAV of nothing": wave[:40] + bytes(4),
        "FLAC of many blocks": flac[:4] + b"\x01\0\0\0" * MANY + flac[4:],
        "FLAC with a picture": flac[:42] + b"\x06\xff\xff\xff" + bytes(99) + flac[42:],
        "FLAC with words": flac[:42] + b"\x04\0\0\x10\xff\xff\xff\xff" + bytes(99) + flac[42:],
        "FLAC of silence": sound(1 << 24, kind="FLAC", hertz=0.0),
        "FLAC of no frame": flac[:42],
        "another format": sound(kind="AIFF"),
        "a text": b"no sound",
        "nothing": b"",
        "a pickle": pickle.dumps(hostile.CALLS["os.system"]()),
        "NaN": sound(300, subtype="FLOAT")[:-400] + struct.pack("<f", float("nan")) * 100,
    }
    return [
        Bait(f"sound {name}, {word or 'kept'}", partial(_sounds, data, word), "victim")
        for name, data in files.items()
        for word in ("", "pack.rate=4000")
    ]


def _sounds(data: bytes, word: str) -> tuple[str, ...]:
    Path("in/a").mkdir(parents=True)
    for name, content in (("0", sound(300)), ("victim", data), ("z", sound(500))):
        Path(f"in/a/{name}.wav").write_bytes(content)
    return (*foreign.PACK, "input.path=in", *filter(None, [word]))


KINDS: dict[str, Callable[[], list[Bait]]] = {
    "shards": cache(shards),
    "tables": cache(tables),
    "annotations": cache(annotation_files),
    "HDF5 files": cache(hdf5_files),
    "LMDB files": cache(lmdb_files),
    "sounds": cache(sound_files),
}


@cache
def baits() -> list[Bait]:
    return [bait for make in KINDS.values() for bait in make()]
