"""One field of all records of a store: the facts that an order may ask for."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import (
    Field,
    KnowsColumns,
    ReadsStarts,
    RecordStore,
)
from framework.errors import ConfigError, DataError
from framework.media.header import BadImage, ImageHeader, read_header
from framework.store.gather import joined

SIZES = ("height", "width")
RECORD = "record"  # its number in the data set
START_BYTES = 64 << 10  # of a JPEG; they hold its size, unless a large preview comes before it
BLOCK_RECORDS = 1024  # read at a time from a store that has no columns


def column_of(store: RecordStore, name: str) -> Any:
    """Return a field of all records, as ``read`` returns it.

    A store that cannot read the field alone is read as a whole.
    """
    if isinstance(store, KnowsColumns):
        return store.column(name)
    blocks = torch.arange(store.manifest.num_records).split(BLOCK_RECORDS)
    return joined([store.read(block)[name] for block in blocks])


def lengths_of(store: RecordStore, name: str) -> Tensor:
    """Return the rows of each record of a ragged field: int64 [num_records]."""
    if isinstance(store, KnowsColumns):
        return store.lengths(name)
    return column_of(store, name).lengths


@final
class StoreFacts:
    """What an order may ask about the records of a store."""

    def __init__(self, store: RecordStore) -> None:
        self.store = store

    def lengths(self, name: str | None) -> Tensor:
        fields = self.store.manifest.fields
        ragged = [own for own, field in fields.items() if field.encoding == "ragged"]
        if name is None and len(ragged) == 1:
            name = ragged[0]
        if name in ragged:
            return lengths_of(self.store, name)
        if name is not None:
            raise _unknown(name, "is not a field of any length", ragged)
        what = "no field of the data has any length"
        if ragged:
            what = "does not say which field's lengths count"
        raise _unknown("null", what, ragged)

    @property
    def classes(self) -> Sequence[str]:
        return self.store.manifest.classes

    @property
    def names(self) -> Sequence[str]:
        fields = self.store.manifest.fields
        names = [own for own, field in fields.items() if is_number(field) or field.kind == "text"]
        sizes = SIZES if self._picture is not None else ()
        return [*names, *(name for name in (*sizes, RECORD) if name not in fields)]

    def answer(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        fields = self.store.manifest.fields
        if name == RECORD and name not in fields:
            return np.arange(self.store.manifest.num_records)
        if name not in fields:
            return self._sizes[:, SIZES.index(name)]
        if is_number(fields[name]):
            return self.values(name)
        arrays = column_of(self.store, name).arrays()
        texts = [array.tobytes().decode(errors="replace") for array in arrays]
        return np.array(texts, object)  # not as wide as the longest text

    @property
    def _picture(self) -> str | None:
        """The field whose size ``width`` and ``height`` are: ``image``, or the first picture."""
        fields = self.store.manifest.fields
        pictures = [name for name, field in fields.items() if field.channels is not None]
        return next((name for name in ("image", *pictures) if name in pictures), None)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The height and width of each record's picture, upright, in pixels: int64 [N, 2]."""
        manifest = self.store.manifest
        name = self._picture or ""
        field = manifest.fields[name]
        if field.encoding != "image":
            places = (0, 1) if field.interleaved else (1, 2)
            size = [field.shape[place] or 0 for place in places]
            return np.tile(np.array(size, np.int64), (manifest.num_records, 1))
        return self._sizes_in_headers(name)

    def _sizes_in_headers(self, name: str) -> np.ndarray:
        store, count = self.store, self.store.manifest.num_records
        sizes = np.empty((count, 2), np.int64)
        if isinstance(store, ReadsStarts):
            for index in range(count):
                data = store.read_start(index, START_BYTES)
                header = None
                with suppress(BadImage):
                    header = read_header(data)
                # Formats other than JPEG may say at the end how an image is turned.
                if header is None or (header.format != "jpeg" and len(data) == START_BYTES):
                    header = self._header(store.read(torch.tensor([index]))[name][0], index)
                sizes[index] = header.size
            return sizes
        for block in torch.arange(count).split(BLOCK_RECORDS):
            # Views copy none of the other fields.
            records = store.read(block, views=store.manifest.fields)
            for index, data in zip(block.tolist(), records[name], strict=True):
                sizes[index] = self._header(data, index).size
        return sizes

    def _header(self, data: Any, index: int) -> ImageHeader:
        try:
            return read_header(data)
        except BadImage as error:
            fix = "verify the store"
            raise DataError(104, self.store.name(index), str(error), fix) from error

    def values(self, name: str) -> np.ndarray:
        fields = self.store.manifest.fields
        known = [own for own, field in fields.items() if is_number(field)]
        if name in known:
            return column_of(self.store, name).numpy().reshape(-1)
        raise _unknown(name, "is not a field with one number per record", known)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        fields = self.store.manifest.fields
        lists = [
            own
            for own, field in fields.items()
            if field.encoding == "ragged" and field.kind == "raw" and field.shape == (None,)
        ]
        if name in lists:
            ragged = column_of(self.store, name)
            return ragged.values.numpy(), ragged.lengths.numpy()
        known = [own for own, field in fields.items() if is_number(field)]
        if name in known:
            values = self.values(name)
            return values, np.ones(len(values), np.int64)
        raise _unknown(name, "is not a field with numbers per record", [*known, *lists])


def is_number(field: Field) -> bool:
    """Return whether a field is one number per record: its shape is [] or [1]."""
    return field.encoding == "raw" and field.shape in ONE_PER_RECORD


def _unknown(name: str, what: str, known: Sequence[str]) -> ConfigError:
    fix = "choose order=full"
    if known:
        fix = f"choose one of {', '.join(known)}"
    return ConfigError(200, f"order.field = {name}", what, fix)


@final
class NoFacts:
    """The facts of data without a store: none."""

    def lengths(self, name: str | None) -> Tensor:
        raise self._refusal(name)

    @property
    def classes(self) -> Sequence[str]:
        return ()

    @property
    def names(self) -> Sequence[str]:
        return ()

    def answer(self, name: str) -> np.ndarray | None:
        return None

    def values(self, name: str) -> np.ndarray:
        raise self._refusal(name)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        raise self._refusal(name)

    def _refusal(self, name: str | None) -> ConfigError:
        what = "this data cannot tell the fields of its records before it reads them"
        fix = "give weights by order=weighted order.file=FILE, or choose order=full"
        return ConfigError(200, f"order.field = {name or 'null'}", what, fix)
