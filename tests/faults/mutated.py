"""Mutated inputs of every kind, each read in a process: the right result or one line."""

import io
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from framework.data import dali, hdf5
from framework.errors import PacelineError
from framework.input.folder import FolderInput
from framework.media import decode
from framework.media.decode import accepted_header, decode_deep, decode_labels, window_pixels
from framework.media.header import BadImage
from framework.pack.pack_store import pack
from framework.pack.packing import Packing
from framework.pack.preparation import Preparation
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore
from framework.train import checkpoint
from framework.transform import none, random_resized_crop
from tests.conftest import FIELDS, make_context, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, encoded_records, jpeg, plain
from tests.faults import files, guard, lanes, spelling, training
from tests.store.fuzz import flips, mutations, truncations, verdict

COUNT = 60
RECIPES = Path(__file__).parents[2] / "recipes"
VALUES = (
    *("null", "[]", "{}", "-1", "0", "1e999", ".nan", "true", "'  '", "???", "x", "9" * 23, "'"),
    *("[1, 2", "{a: b", "${epochs}", "${nothing}", "${oc.env:HOME}", "${", "*a", "&a [*a]", "!x y"),
    *("!!python/object/apply:os.getcwd []", "!!binary aGk=", "{_target_: os.system}", "2026-11-21"),
    *("0x1F", "1_000", "| text", "> text", "@", "`", "%", "[" * 200, "\U0001f600", "[[[1]]]"),
)
GIVEN = (
    *("null", "-1", "0", "3", "1e30", "9" * 20, "true", "text", "''", "[]", "[1,2]", "[x]", "{}"),
    *("{a:1}", "nan", "/dev/null"),
)
SHORT = {"max_steps": 2, "limit": 16, "batch_size": 8, "epochs": 1}
OTHERS = (
    *(None, -1, 1 << 70, 0, float("nan"), float("inf"), "text", True),
    *([], {}, {"a": 1}, [1, 2], torch.zeros(3), torch.zeros(0)),
)


def rows(times: int, seed: int) -> Iterator[lanes.Row]:
    """Yield a row for each kind of input, with its share of the attempts."""

    def row(attempt: Callable[..., str], share: float, *place: Any) -> lanes.Row:
        count = max(1, round(times * share))
        return lanes.repeat(f"mutated: {attempt.__doc__}", partial(attempt, *place), count, seed)

    shares = ((decoded, 0.46), (read, 0.1), (read_by_dali, 0.04), (packed, 0.1), (stored, 0.14))
    for attempt, share in shares:
        yield row(attempt, share)
    yield row(packed_inputs, 0.05)  # this and those below take longer
    with tempfile.TemporaryDirectory() as folder:
        place = training.make_place(Path(folder), ("fp32",))
        yield row(recipe, 0.04, place.dataset)
        yield row(value, 0.03, place.dataset)
        yield row(resumed, 0.04, place, folder)


# ------------------------------------------------------------------------------------------- images


def image_file(draw: random.Random) -> tuple[str, bytes]:
    name = draw.choice([*files.images()])
    return name, files.mutated(files.images()[name], draw)


def named(name: str, outcome: str) -> str:
    return f"{name}: {outcome}" if outcome else ""


def decoded(draw: random.Random) -> str:
    """images, by our decoders: the same pixels from whatever lay in memory"""
    name, data = image_file(draw)
    return named(name, guard.guarded(_decoded, data, draw.choice((1, 3)), draw.random()))


def _decoded(data: bytes, channels: int, where: float) -> str:
    calls: dict[str, Callable[[], np.ndarray]] = {
        "decode": lambda: decode.decode(data, channels),
        "decode_shrunk": lambda: decode.decode(data, channels, least=(4, 4)),
        "decode_deep": lambda: decode_deep(data, channels),
        "decode_labels": lambda: decode_labels(data, deepest=16),
        "window_pixels": lambda: _window(data, channels, where),
    }
    for name, call in calls.items():
        first, second = (_outcome(call, byte) for byte in (0x55, 0xAA))
        if type(first) is not type(second) or not np.array_equal(first, second):
            return f"{name} is not the same twice: {_short(first)}, {_short(second)}"
        wanted = 1 if name == "decode_labels" else channels
        if isinstance(first, np.ndarray) and (first.ndim != 3 or first.shape[2] != wanted):
            return f"{name} gives {first.shape}"
        if isinstance(first, str) and (not first or "\n" in first):
            return f"{name} says {first!r}"
    return ""


def _outcome(call: Callable[[], np.ndarray], byte: int) -> np.ndarray | str:
    guard.fill_memory_with(byte)
    try:
        return np.array(call())
    except BadImage as error:
        return str(error)


def _short(outcome: np.ndarray | str) -> str:
    return outcome if isinstance(outcome, str) else f"pixels {outcome.shape}"


def _window(data: bytes, channels: int, where: float) -> np.ndarray:
    header = accepted_header(data)
    height, width = header.size
    top, left = int(where * height), int(where * width)
    return window_pixels(data, header, channels, (top, left, height - top, width - left, 0), None)


def read(draw: random.Random) -> str:
    """images in a store, read for training"""
    name, data = image_file(draw)
    return named(name, guard.guarded(_read, hdf5.hdf5_source, data, draw.randint(0, 2)))


def read_by_dali(draw: random.Random) -> str:
    """images in a store, read by DALI"""
    name, data = image_file(draw)
    return named(name, guard.guarded(_read, partial(dali.dali_source, prefetch_depth=1), data, 0))


def _read(make: Callable, data: bytes, num_workers: int) -> str:
    records = {"image": [jpeg(0), data, jpeg(1), jpeg(2)], "label": np.arange(4)}
    path = write_store("x.h5", records, IMAGE_FIELDS)
    crop = random_resized_crop.RandomResizedCrop([8, 8], [0.2, 1.0], [0.7, 1.4], 0.5, 0.5, True)
    for transform in (crop, none.NoTransform()):
        try:
            context = make_context(2, num_workers, transform=transform, verify="always")
            source = make(path, context=context)
            for batch, *_ in source.batches(0):
                if transform is crop and tuple(batch["image"].shape[1:]) != (3, 8, 8):
                    return f"a batch of {tuple(batch['image'].shape)}"
            source.close()
        except PacelineError as error:
            if "\n" in str(error):
                return f"more than one line: {error}"
    return ""


def packed(draw: random.Random) -> str:
    """images, packed in any way"""
    name, data = image_file(draw)
    ways = ({}, {"encode": "jpeg"}, {"encode": "png", "max_side": 20})
    ways += ({"encode": "raw", "size": (12, 10), "bit_depth": 8},)
    return named(name, guard.guarded(_packed, data, {"quality": 90, **draw.choice(ways)}))


def _packed(data: bytes, options: dict) -> str:
    Path("in/a").mkdir(parents=True)
    for number, content in enumerate((jpeg(0), data, jpeg(1))):
        Path(f"in/a/{number}.jpg").write_bytes(content)
    source = FolderInput("in", None, None)
    prepared = Preparation(**options)
    done = pack(Packing(source, HDF5Writer, "x.h5", prepared, on_error="skip", suffix=".h5"))
    store = HDF5Store("x.h5")
    indices = torch.arange(store.manifest.num_records)
    bad = [f"{line.error} {line.reason}" for line in done.bad]
    is_wrong = len(indices) + len(bad) != 3 or "\n" in "".join(bad)
    if is_wrong or store.damaged(indices, store.read(indices)):
        return f"{store.manifest.num_records} records, {bad}"
    return ""


# ----------------------------------------------------------------------------- stores, other inputs


@cache
def whole_store(ending: str, kind: str) -> tuple[bytes, dict[str, list]]:
    """Return (bytes, records) of a store."""
    records = make_records(COUNT) if kind == "raw" else encoded_records(COUNT)
    fields = FIELDS if kind == "raw" else IMAGE_FIELDS
    path = write_store(os.path.abspath(f"whole.{ending}"), records, fields)
    return Path(path).read_bytes(), plain(records)


def stored(draw: random.Random) -> str:
    """HDF5 and LMDB stores"""
    ending, kind = draw.choice(("h5", "lmdb")), draw.choice(("raw", "images"))
    data, expected = whole_store(ending, kind)
    damage = draw.choice((flips, mutations, mutations, truncations))
    Path(f"x.{ending}").write_bytes(next(damage(data, 1, seed=draw.randrange(1 << 30))))
    store = {"h5": HDF5Store, "lmdb": LMDBStore}[ending]
    outcome = guard.guarded(verdict, store, f"x.{ending}", expected, torch.arange(COUNT))
    is_fine = outcome in ("right", "found", "refused")
    return "" if is_fine else f"{ending} {kind} {damage.__name__}: {outcome}"


def annotations() -> dict[str, Any]:
    """Return COCO's description of two images of 16 x 12 pixels: a polygon, and run lengths."""
    regions = [[[1, 1, 9, 1, 9, 9]], {"size": [16, 12], "counts": [20, 30, 142]}]
    objects = [
        {"id": n, "image_id": n, "category_id": 3, "bbox": [1, 1, 8, 8], "segmentation": region}
        for n, region in enumerate(regions, 1)
    ]
    images = [{"id": n, "file_name": f"{n}.jpg", "height": 16, "width": 12} for n in (1, 2)]
    return {"images": images, "annotations": objects, "categories": [{"id": 3, "name": "dog"}]}


@cache
def other_inputs() -> dict[str, tuple[dict[str, bytes], list[str]]]:
    """Return (files, words that pack them) by input, but for those that ``foreign`` damages."""
    arrays = io.BytesIO()
    np.savez(arrays, image=np.zeros((5, 3, 4, 4), np.uint8), label=np.arange(5))
    idx = {"images": struct.pack(">4I", 0x803, 5, 4, 3) + bytes(60)}
    idx["labels"] = struct.pack(">2I", 0x801, 5) + bytes(5)
    table = {"x.csv": b"image,label\n1.jpg,a\n2.jpg,b\n", "1.jpg": jpeg(1), "2.jpg": jpeg(2)}
    return {
        "list": (table, ["input.path=x.csv"]),
        "arrays": ({"x.npz": arrays.getvalue()}, ["input.path=x.npz"]),
        "idx": (idx, ["input.images=images", "input.labels=labels"]),
        "store": ({"x.h5": whole_store("h5", "raw")[0]}, ["input.path=x.h5"]),
    }


def packed_inputs(draw: random.Random) -> str:
    """tables, arrays and stores, packed by the command"""
    name = draw.choice([*other_inputs()])
    contents, words = other_inputs()[name]
    victim = next(iter(contents))
    for file, data in contents.items():
        Path(file).write_bytes(files.mutated(data, draw) if file == victim else data)
    target = ["output=lmdb", "output.path=out.lmdb", "workers=0"]
    return named(name, guard.guarded(guard.answered, "pack", f"input={name}", *words, *target))


# ----------------------------------------------------------------------------- recipes, checkpoints


def recipe(dataset: str, draw: random.Random) -> str:
    """recipes, trained by the command"""
    text = (RECIPES / f"{draw.choice(('digits', 'cifar10', 'photos'))}.yaml").read_text()
    for _ in range(draw.randint(1, 3)):
        text = draw.choice((bad_value, bad_value, without_line, indented, as_bytes))(text, draw)
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
    short = ["max_steps=2", "limit=64", "epochs=1", "sink=[]", f"dataset={dataset}"]
    outcome = guard.guarded(guard.answered, "train", "--config-dir", ".", "recipes=mine", *short)
    return f"{outcome}; the recipe: {text!r}" if outcome else ""


def value(dataset: str, draw: random.Random) -> str:
    """values of any key, given to the command"""
    parts = spelling.chosen_parts("train", draw)
    known = spelling.keys("train", tuple(parts))
    key = draw.choice(
        [key for key in known if key != "resume" and not key.startswith(("dataset", "debug"))]
    )
    word = draw.choice((f"~{key}", *(f"++{key}={given}" for given in GIVEN)))
    short = [f"{name}={number}" for name, number in SHORT.items() if name != key]
    if "transform.size" in known and key != "transform.size":
        short += ["transform.size=[32,32]"]  # digits of 224 need 600 MiB
    outcome = guard.guarded(
        guard.answered, "train", *parts, *short, "recipes=digits", f"dataset={dataset}", word
    )
    return f"{' '.join(parts)} {word}: {outcome}" if outcome else ""


def bad_value(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    lines[at] = f"{lines[at].partition(':')[0]}: {draw.choice(VALUES)}"
    return "\n".join(lines)


def without_line(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    del lines[draw.randrange(len(lines))]
    return "\n".join(lines or [""])


def indented(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    lines[at] = draw.choice((" ", "  ", "\t", "- ", "? ", "<<: ")) + lines[at]
    return "\n".join(lines)


def as_bytes(text: str, draw: random.Random) -> str:
    data = text.encode(errors="surrogateescape")
    return draw.choice((files.flipped, files.cut_off, files.spliced))(data, draw).decode(
        errors="surrogateescape"
    )


def resumed(place: training.Place, folder: str, draw: random.Random) -> str:
    """checkpoints with a new, fitting checksum, resumed by the command"""
    shutil.copytree(Path(folder, "fp32"), "run")
    newest = checkpoint.newest_path(Path("run"))
    assert newest is not None
    state = checkpoint.read_state(newest)
    for path in newest.parent.glob("step-*.pt"):
        if path != newest:
            path.unlink()
    what = "bytes"
    if draw.random() < 0.3:
        stamped(newest, files.mutated(newest.read_bytes()[: -checkpoint.END_BYTES], draw))
    else:
        what = changed(state, draw)
        checkpoint.save_state(newest, state, 1, 9)
    words = ("train", "resume=run", "allow_targets=[tests]", "epochs=4", "max_steps=48")
    return named(what, guard.guarded(guard.answered, *words))


def stamped(path: Path, payload: bytes) -> None:
    """Write ``payload`` to a file with the end that a whole file has."""
    end = checkpoint._END.pack(
        checkpoint._MAGIC, checkpoint.VERSION, 1, 9, len(payload), crc32(payload)
    )
    path.write_bytes(payload + end + checkpoint._CRC.pack(crc32(end)))


def changed(node: Any, draw: random.Random, where: str = "") -> str:
    """Remove or replace a random part of the state. Return a description of the change."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = draw.choice(keys)
    child = node[key]
    if isinstance(child, dict | list) and child and draw.random() < 0.8:
        return changed(child, draw, f"{where}.{key}")
    if isinstance(node, dict) and draw.random() < 0.2:
        del node[key]
        return f"{where}.{key} is gone"
    others = list(OTHERS)
    if torch.is_tensor(child):
        others += [child.flatten()[1:], child * float("nan"), child.half()]
    node[key] = draw.choice(others)
    return f"{where}.{key} = {str(node[key])[:60]}"
