"""One of each implementation over small real files, for the contract suites and other tests."""

import io
import json
import os
import random
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch

from framework.contracts.data import Source
from framework.contracts.records import Chunk, Field, Manifest, Ragged
from framework.data import dali, dataset, folder, hdf5, lmdb, synthetic, tar
from framework.data.parquet import parquet_source
from framework.media.decode import encode_png
from framework.pack.pack_store import pack
from framework.pack.packing import Packing
from framework.store import folder_store, hdf5_store, lmdb_store, parquet_store, tar_store
from framework.store.open_store import ShardedStore, open_file
from tests.conftest import FIELDS, make_context, make_records, write_store

IMAGE_FIELDS = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}
MAP_FIELDS = {**IMAGE_FIELDS, "mask": Field("uint8", (1, None, None), "image", "labels")}
RAW_MAP_FIELDS = {
    "image": Field("uint8", (3, 16, 12)),
    "label": Field("int64", ()),
    "mask": Field("uint8", (1, 16, 12), kind="labels"),
}
RAGGED_FIELDS = {
    **IMAGE_FIELDS,
    "boxes": Field("float32", (None, 4), kind="boxes"),
    "points": Field("float32", (2, 3), kind="points"),
    "text": Field("uint8", (None,), kind="text"),
    "blob": Field("uint8", (None,), kind="bytes"),
    "signal": Field("int16", (None, 2)),
}
STORES = (
    *("hdf5_ragged", "lmdb_ragged", "shards_ragged", "hdf5", "lmdb", "hdf5_images", "lmdb_images"),
    *("hdf5_maps", "lmdb_maps", "shards_maps", "folder", "tar", "parquet", "tar_ragged"),
    "parquet_ragged",
)
RAGGED_KINDS = {"boxes": "boxes", "points": "points", "signal": "ragged"}
OPTIONS: dict[str, dict[str, Any]] = {  # of stores that do not describe themselves
    "tar_ragged": {
        "fields": {
            "image": "jpg",
            "label": "cls",
            "boxes": "boxes.npy",
            "points": "points.npy",
            "text": "txt",
            "blob": "bin",
            "signal": "npy",
        },
        "kinds": RAGGED_KINDS,
    },
    "parquet_ragged": {"kinds": {**RAGGED_KINDS, "blob": "bytes"}},
}
SOURCES = (
    *("hdf5", "lmdb", "folder", "tar", "parquet", "dali"),
    *("synthetic", "dataset", "dataset_drawing"),
)
READERS = tuple(kind for kind in SOURCES if kind != "synthetic")  # that read records of their own
UNTRANSFORMED = ("dataset", "dataset_drawing")  # those of them that refuse a transform
WAYS = [(0, "thread"), (2, "thread"), (2, "process")]  # of reading: how many workers, of which kind
TAKEN = {  # by sources that take not all of them
    "dali": WAYS[:2],
    "synthetic": WAYS[:1],
    "dataset": [WAYS[0], WAYS[2]],
    "dataset_drawing": [WAYS[0], WAYS[2]],
}
KINDS_AND_WAYS = [(kind, *way) for kind in SOURCES for way in TAKEN.get(kind, WAYS)]


def pixels(seed: int, height: int = 16, width: int = 12, channels: int = 3) -> np.ndarray:
    """Return a smooth picture, uint8 [height, width, channels]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, channels), np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return smooth.reshape(height, width, channels)


def jpeg(seed: int, height: int = 16, width: int = 12) -> bytes:
    return simplejpeg.encode_jpeg(pixels(seed, height, width), quality=95)


def label_map(seed: int, height: int = 16, width: int = 12) -> np.ndarray:
    """Return a box of class 7 on class 0, uint8 [1, height, width]."""
    values = np.zeros((1, height, width), np.uint8)
    top, left = np.random.default_rng(seed).integers(0, 5, 2).tolist()
    values[:, top : top + height // 2, left : left + width // 2] = 7
    return values


def map_records(count: int, encoded: bool) -> dict:
    """Return records with an image and its label map; its first channel is 30 times the map."""
    maps = [label_map(number) for number in range(count)]
    images = [
        np.concatenate([30 * values, values, pixels(n).transpose(2, 0, 1)[:1]])
        for n, values in enumerate(maps)
    ]
    if encoded:
        images = [encode_png(image) for image in images]
        maps = [encode_png(values) for values in maps]
        return {"image": images, "label": np.arange(count) % 3, "mask": maps}
    return {"image": np.stack(images), "label": np.arange(count) % 3, "mask": np.stack(maps)}


def ragged_records(count: int) -> dict:
    """Return records of any length, some of them empty, beside JPEGs of 16 x 12 pixels."""
    rng = np.random.default_rng(0)
    corners = [np.sort(rng.uniform(0, 12, (n % 4, 2, 2)), axis=1) for n in range(count)]
    texts = ["", "Zürich", "日本", "a longer line of text"]
    return {
        "image": [jpeg(number) for number in range(count)],
        "label": np.arange(count) % 3,
        "boxes": [array.reshape(-1, 4).astype(np.float32) for array in corners],
        "points": rng.uniform(0, 12, (count, 2, 3)).astype(np.float32),
        "text": [np.frombuffer(texts[n % 4].encode(), np.uint8) for n in range(count)],
        "blob": [np.arange(n, dtype=np.uint8) for n in range(count)],
        "signal": [rng.integers(-9, 9, (3 * n % 7, 2)).astype(np.int16) for n in range(count)],
    }


class MemoryInput:
    """Records in memory as an input of packing."""

    def __init__(self, records: dict, fields: dict) -> None:
        self.records = records
        count = len(next(iter(records.values())))
        self.manifest = Manifest(count, fields, ["a", "b", "c"], source="memory")

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: values[start:stop] for name, values in self.records.items()}
        return Chunk(records, [str(number) for number in range(start, stop)])

    def name(self, index: int) -> str:
        return f"item {index}"


class RecordsDataset:
    """``make_records`` as a Dataset of dicts. It knows nothing of ours."""

    def __init__(self, count: int) -> None:
        self.records = make_records(count)

    def __len__(self) -> int:
        return len(self.records["label"])

    def __getitem__(self, index: int) -> dict:
        image = torch.from_numpy(self.records["image"][index])
        return {"image": image, "label": int(self.records["label"][index])}


class DrawingDataset(RecordsDataset):
    """The same records, and a number of each generator that a Dataset may draw from."""

    def __getitem__(self, index: int) -> dict:
        draws = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002  # as users write it
        return {**super().__getitem__(index), "draws": np.array(draws)}


def write_folder(path: str, images: list[bytes]) -> str:
    """Write image ``i`` as file ``i``.jpg in three classes, and return the absolute path."""
    for number, data in enumerate(images):
        file = Path(path, "abc"[number * 3 // len(images)], f"{number:03d}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return os.path.abspath(path)


def write_tar(path: str, members: list[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> str:
    """Write an archive of (name, bytes), and return its path."""
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_shards(path: str, records: dict) -> str:
    """Write records into two shards of a folder, as webdataset does, and return its path."""
    os.makedirs(path)
    suffixes = {name: OPTIONS["tar_ragged"]["fields"][name] for name in records}
    count = len(records["image"])
    for shard in range(2):
        members = [
            (f"{number:04}.{suffix}", member_bytes(records[name][number], suffix))
            for number in range(shard * count // 2, (shard + 1) * count // 2)
            for name, suffix in suffixes.items()
        ]
        write_tar(f"{path}/train-{shard}.tar", members)
    return path


def member_bytes(value: Any, suffix: str) -> bytes:
    """Return a value as webdataset writes it."""
    if suffix.endswith("npy"):
        file = io.BytesIO()
        np.save(file, value)
        return file.getvalue()
    return b"%d" % value if suffix == "cls" else bytes(value)


def write_parquet(path: Any, records: dict, rows: int = 3) -> Any:
    """Write images and labels as Hugging Face does, in groups of ``rows``. Return the path."""
    import pyarrow as pa
    from pyarrow import parquet

    features = {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
    features["image"] = {"_type": "Image"}
    about = json.dumps({"info": {"features": features}})
    files = [{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(records["image"])]
    others = {name: records[name] for name in records if name not in ("image", "label")}
    columns = {name: [value.tolist() for value in values] for name, values in others.items()}
    if "text" in columns:
        columns["text"] = [bytes(value).decode() for value in records["text"]]
        columns["blob"] = [bytes(value) for value in records["blob"]]
        columns["signal"] = pa.array(columns["signal"], pa.list_(pa.list_(pa.int16())))
    table = pa.table({"image": files, "label": records["label"], **columns})
    table = table.replace_schema_metadata({"huggingface": about})
    parquet.write_table(table, path, row_group_size=rows)
    return path


def write_case(kind: str, count: int) -> tuple[str, dict]:
    """Write a store of this kind into the current directory, and return (path, records)."""
    if kind == "folder":
        images = [jpeg(number) for number in range(count)]
        labels = np.array([number * 3 // count for number in range(count)])
        return write_folder("images", images), {"image": images, "label": labels}
    if kind in ("tar", "parquet", "tar_ragged", "parquet_ragged"):
        records = ragged_records(count) if "ragged" in kind else encoded_records(count)
        path = os.path.abspath(f"{count}.{kind}")  # a store of another test's part stays as it is
        if not os.path.exists(path):
            write = write_shards if kind.startswith("tar") else write_parquet
            write(path, records)
        return path, records
    records = make_records(count)
    fields = FIELDS
    if kind.endswith("ragged"):
        records, fields = ragged_records(count), RAGGED_FIELDS
    if kind == "shards_maps":
        records, fields = map_records(count, encoded=True), MAP_FIELDS
    if kind.startswith("shards"):
        source = MemoryInput(records, fields)
        pack(Packing(source, hdf5_store.HDF5Writer, f"{kind}.store", one_file=False, suffix=".h5"))
        return os.path.abspath(f"{kind}.store"), records
    if kind.endswith("maps"):
        encoded = not kind.endswith("raw_maps")
        records, fields = map_records(count, encoded), MAP_FIELDS if encoded else RAW_MAP_FIELDS
    if kind.endswith("images"):
        records["image"] = [jpeg(number) for number in range(count)]
        fields = IMAGE_FIELDS
    suffix = "h5" if kind.startswith("hdf5") else "lmdb"
    return write_store(os.path.abspath(f"{kind}.{suffix}"), records, fields), records


def open_case(kind: str, path: str):
    """Return a RecordStore of this kind."""
    made = {
        "hdf5": hdf5_store.HDF5Store,
        "lmdb": lmdb_store.LMDBStore,
        "folder": folder_store.FolderStore,
        "tar": tar_store.TarStore,
        "parquet": parquet_store.ParquetStore,
        "shards": partial(ShardedStore, open_file=open_file),
    }
    return made[kind.partition("_")[0]](path, **OPTIONS.get(kind, {}))


def make_store(kind: str, count: int = 7):
    """Write and open a store of this kind, and return (store, records)."""
    path, records = write_case(kind, count)
    return open_case(kind, path), records


def make_source(kind: str, count: int = 10, **options) -> Source:
    """Return a Source over ``count`` records; ``options`` as in ``make_context``."""
    context = make_context(**options)
    if kind == "synthetic":
        return synthetic.SyntheticSource("train", (3, 4, 4), 3, count, context=context)
    if kind.startswith("dataset"):
        drawing = kind.endswith("drawing")
        records = (DrawingDataset if drawing else RecordsDataset)(count)
        return dataset.dataset_source(records, context=context)
    if kind.startswith("dali"):
        path, _ = write_case(kind.replace("dali", "hdf5"), count)
        return dali.dali_source(path, 2, context=context)
    make = {
        "hdf5": hdf5.hdf5_source,
        "shards": hdf5.hdf5_source,
        "lmdb": lmdb.lmdb_source,
        "folder": folder.folder_source,
        "tar": tar.tar_source,
        "parquet": parquet_source,
    }[kind.partition("_")[0]]
    return make(write_case(kind, count)[0], context=context, **OPTIONS.get(kind, {}))


def plain(records) -> dict[str, list]:
    """Return records or a batch as lists, to be compared."""
    return {name: plain_values(values) for name, values in records.items()}


def plain_values(values) -> list:
    if isinstance(values, Ragged):
        values = values.arrays()
    if isinstance(values, torch.Tensor) and values.is_nested:
        values = list(values.unbind())
    if isinstance(values, torch.Tensor | np.ndarray):
        return values.tolist()
    is_array = bool(values) and isinstance(values[0], torch.Tensor | np.ndarray)
    if is_array or (values and isinstance(values[0], str)):
        return [value.tolist() if is_array else value for value in values]
    return [bytes(value) for value in values]


def rows(records, indices) -> dict[str, list]:
    """Return what ``read(indices)`` is to return, as lists."""
    return {name: [values[index] for index in indices] for name, values in plain(records).items()}


def micros(source, epoch: int = 0, start: int = 0) -> list:
    """Return an epoch as lists, to be compared."""
    return [(plain(batch), weight, last) for batch, weight, last in source.batches(epoch, start)]


def shares(order, epoch: int = 0, start: int = 0) -> list:
    """Return what the order says of an epoch, as lists."""
    return [(own.indices.tolist(), own.weight, own.last) for own in order.shares(epoch, start)]


def child_read(stores: list, sender) -> None:
    """Read in a child through the parent's and through new stores, and send what was read."""
    indices = torch.tensor([2, 0, 2])
    pairs = [(store, open_case(kind, store.path)) for kind, store in stores]
    sender.send([tuple(plain(store.read(indices)) for store in pair) for pair in pairs])


def encoded_records(count: int) -> dict:
    """Return records with image files instead of pixels."""
    return {"image": [jpeg(number) for number in range(count)], "label": np.arange(count) % 3}
