"""Paceline's own contestants: Sources with the defaults of conf/, as a training run builds them."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from peers.work import MEAN, PADDING, STD, Epoch, Work
from torch import Tensor

import framework
from framework.contracts.data import Source, SourceContext
from framework.contracts.records import Field, Manifest
from framework.data.dataset import dataset_source
from framework.data.folder import folder_source
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.data.tar import tar_source
from framework.measure.host import num_cores
from framework.order.batches import Order
from framework.order.draws import draws
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter

SEED = 0
JPEG = Field("uint8", (3, None, None), "image")


def part(group: str, name: str, **changes: Any) -> Any:
    """Return a component with the defaults of its file under conf/.

    Hydra is not imported, because reading does not need it.
    """
    block = yaml.safe_load(
        Path(framework.__file__).parents[1].joinpath("conf", group, f"{name}.yaml").read_text()
    )
    module, _, target = block.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), target)(**{**block, **changes})


def context(work: Work, verify: str = "off") -> SourceContext:
    """Return the context of a Source, as a training run makes it.

    If images are decoded, a thread per core reads them.
    """
    small = work.workload in "DER"
    transform = (
        part("transform", "none")
        if small
        else part("transform", "random_resized_crop", antialias=work.antialias)
    )
    order = partial(Order, batch_size=work.batch_size, seed=SEED, shuffle=True)
    return SourceContext(
        order,
        transform,
        seed=SEED,
        num_workers=None,
        worker_kind="thread",
        verify=verify,
        num_cores=num_cores(),
    )


def epochs(source: Source) -> Epoch:
    """Return the epochs of a Source whose field ``image`` is compared."""

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, _, _ in source.batches(number):
            yield batch["image"], batch["index"]

    return epoch


def hdf5(work: Work) -> Epoch:
    return epochs(hdf5_source(work.path("paceline.h5"), context=context(work)))


def hdf5_verified(work: Work) -> Epoch:
    return epochs(hdf5_source(work.path("paceline.h5"), context=context(work, "always")))


def lmdb(work: Work) -> Epoch:
    return epochs(lmdb_source(work.path("paceline.lmdb"), context=context(work)))


def folder(work: Work) -> Epoch:
    return epochs(folder_source(work.path("files"), context=context(work)))


def tar(work: Work) -> Epoch:
    return epochs(tar_source(work.path("shards"), context=context(work)))


def ragged_hdf5(work: Work) -> Epoch:
    return _rows(hdf5_source(work.path("ragged.h5"), context=_nested(work)))


def ragged_lmdb(work: Work) -> Epoch:
    return _rows(lmdb_source(work.path("ragged.lmdb"), context=_nested(work)))


def _nested(work: Work) -> SourceContext:
    return replace(context(work), collate="nested")


def _rows(source: Source) -> Epoch:
    """Return epochs of R whose batches are the values of all records, concatenated.

    A nested tensor stores them like that.
    """

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, _, _ in source.batches(number):
            yield batch["values"].values(), batch["index"]

    return epoch


def marked_hdf5(work: Work) -> Epoch:
    return epochs(hdf5_source(work.path("marked.h5"), context=context(work)))


def dataset_pillow(work: Work) -> Epoch:
    """Return epochs of A or B that read the Dataset of the row "DataLoader + Pillow"."""
    # Imported here, because the other rows must not pay for it.
    from peers.torch_loader import Pillow

    return _items(Pillow(work.files()), work, None)


def dataset_pillow_threads(work: Work) -> Epoch:
    """Return epochs of A or B that read the same Dataset in threads.

    Pillow releases Python's lock while it decodes.
    """
    from peers.torch_loader import Pillow

    return _items(Pillow(work.files(), keyed=True), work, "thread")


def dataset_simplejpeg(work: Work) -> Epoch:
    from peers.torch_loader import SimpleJpeg

    return _items(SimpleJpeg(work.files(), work.antialias), work, None)


def _items(dataset: Any, work: Work, kind: str | None) -> Epoch:
    own = replace(
        context(work),
        transform=part("transform", "none"),
        num_workers=work.num_workers,
        worker_kind=kind,
    )
    return epochs(dataset_source(dataset, ["image", "number"], context=own))


def augmented(work: Work) -> Epoch:
    """Return epochs of E that augment batches by ``augment=crop_flip``.

    The draws are the same as on any device.
    """
    source = hdf5_source(work.path("paceline.h5"), context=context(work))
    augment = part("augment", "crop_flip", padding=PADDING, mean=MEAN, std=STD)

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, _, _ in source.batches(number):
            finished = augment(batch, draws(batch["index"], SEED, number, augment.num_draws))
            yield finished["image"], finished["index"]

    return epoch


def hdf5_chw(work: Work) -> Epoch:
    """Return epochs of C that read pixels stored as planes, the default of ``pack.layout``."""
    return epochs(hdf5_source(work.path("paceline-chw.h5"), context=context(work)))


def make_stores(work: Work) -> None:
    """Write paceline.h5 and paceline.lmdb: the files as they are, or the pixels of raw.npy.

    The pixels of C stay interleaved. Those of D are stored as planes.
    """
    _write(HDF5Writer, "paceline.h5", work, planes=work.workload != "C")
    _write(LMDBWriter, "paceline.lmdb", work, planes=work.workload != "C")


def make_chw(work: Work) -> None:
    """Write paceline-chw.h5, which has the pixels of C as planes."""
    _write(HDF5Writer, "paceline-chw.h5", work, planes=True)


def _write(writer_class: Any, name: str, work: Work, planes: bool) -> None:
    files = work.files()
    pixels = None if files else np.load(work.path("raw.npy"), mmap_mode="r")
    if pixels is not None and planes:
        pixels = pixels.transpose(0, 3, 1, 2)
    field = JPEG if pixels is None else Field("uint8", pixels.shape[1:])
    writer = writer_class(work.path(name), fields={"image": field}, num_records=work.num_records)
    for start in range(0, work.num_records, 64):
        span = range(start, min(start + 64, work.num_records))
        values = (
            [Path(files[n]).read_bytes() for n in span]
            if pixels is None
            else np.ascontiguousarray(pixels[start : span.stop])
        )
        writer.write({"image": values}, [f"{number:06}" for number in span])
    writer.close(Manifest(work.num_records, {"image": field}, source="benchmarks/data.py"))


def make_ragged(work: Work) -> None:
    """Write R into ragged.h5 and ragged.lmdb."""
    field = Field("float32", (None,))
    arrays = work.ragged()
    for writer_class, name in ((HDF5Writer, "ragged.h5"), (LMDBWriter, "ragged.lmdb")):
        writer = writer_class(
            work.path(name), fields={"values": field}, num_records=work.num_records
        )
        writer.write({"values": arrays}, [f"{number:06}" for number in range(work.num_records)])
        writer.close(Manifest(work.num_records, {"values": field}, source="benchmarks/data.py"))


def make_marked(work: Work) -> None:
    """Write M into marked.h5: image files, label maps and boxes."""
    fields = {
        "image": JPEG,
        "mask": Field("uint8", (1, None, None), "image", "labels"),
        "boxes": Field("float32", (None, 4), kind="boxes"),
    }
    writer = HDF5Writer(work.path("marked.h5"), fields=fields, num_records=work.num_records)
    records = {
        "image": [Path(path).read_bytes() for path in work.files()],
        "mask": [Path(path).read_bytes() for path in work.masks()],
        "boxes": list(np.load(work.path("boxes.npy"))),
    }
    writer.write(records, [f"{number:06}" for number in range(work.num_records)])
    writer.close(Manifest(work.num_records, fields, source="benchmarks/data.py"))
