"""One field of all records of a store: the facts that an order may ask for."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import Field, KnowsColumns, ReadsStarts, RecordStore
from framework.errors import ConfigError, DataError
from framework.media.header import BadImage, read_header
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


def is_number(field: Field) -> bool:
    """Return whether a field is one number per record: its shape is [] or [1]."""
    return field.encoding == "raw" and field.shape in ONE_PER_RECORD


@final
class StoreFacts:
    """What an order may ask about the records of a store. Without a store, nothing is known."""

    def __init__(self, store: RecordStore | None) -> None:
        self._store = store
        self._fields: Mapping[str, Field] = {}
        if store is not None:
            self._fields = store.manifest.fields
        self._numbers = [name for name, field in self._fields.items() if is_number(field)]

    @property
    def store(self) -> RecordStore:
        assert self._store is not None
        return self._store

    @property
    def classes(self) -> Sequence[str]:
        return () if self._store is None else self._store.manifest.classes

    @property
    def names(self) -> Sequence[str]:
        fields = self._fields
        names = [own for own in fields if own in self._numbers or fields[own].kind == "text"]
        extra = [*(SIZES if self._picture else ()), *(() if self._store is None else (RECORD,))]
        return [*names, *(name for name in extra if name not in fields)]

    def lengths(self, name: str | None) -> Tensor:
        ragged = [own for own, field in self._fields.items() if field.encoding == "ragged"]
        if name is None and len(ragged) == 1:
            name = ragged[0]
        if name in ragged:
            return lengths_of(self.store, name)
        if name is not None:
            raise self._unknown(name, "is not a field of any length", ragged)
        what = "no field of the data has any length"
        if ragged:
            what = "does not say which field's lengths count"
        raise self._unknown("null", what, ragged)

    def answer(self, name: str) -> np.ndarray | None:
        if name not in self.names:
            return None
        if name == RECORD and name not in self._fields:
            return np.arange(self.store.manifest.num_records)
        if name not in self._fields:
            return self._sizes[:, SIZES.index(name)]
        if name in self._numbers:
            return self.values(name)
        arrays = column_of(self.store, name).arrays()
        texts = [array.tobytes().decode(errors="replace") for array in arrays]
        return np.array(texts, object)  # not as wide as the longest text

    @property
    def _picture(self) -> str | None:
        """The field whose size ``width`` and ``height`` are: ``image``, or the first picture."""
        pictures = [name for name, field in self._fields.items() if field.channels is not None]
        return next((name for name in ("image", *pictures) if name in pictures), None)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The height and width of each record's picture, upright, in pixels: int64 [N, 2]."""
        store, name = self.store, self._picture or ""
        field, count = self._fields[name], store.manifest.num_records
        sizes = np.zeros((count, 2), np.int64)
        if field.encoding != "image":
            shape = field.shape[:2] if field.interleaved else field.shape[1:]
            sizes[:] = [size or 0 for size in shape]
            return sizes
        starts = store if isinstance(store, ReadsStarts) else None
        for block in torch.arange(count).split(BLOCK_RECORDS):
            if starts is not None:
                parts: Any = [starts.read_start(index, START_BYTES) for index in block.tolist()]
            else:  # views copy none of the other fields
                parts = store.read(block, views=self._fields)[name]
            for index, data in zip(block.tolist(), parts, strict=True):
                header = None
                with suppress(BadImage):
                    header = read_header(data)
                # Formats other than JPEG may say at the end how an image is turned.
                is_cut = starts is not None and len(data) == START_BYTES
                if header is None or (is_cut and header.format != "jpeg"):
                    try:
                        header = read_header(store.read(torch.tensor([index]))[name][0])
                    except BadImage as error:
                        where = store.name(index)
                        raise DataError(104, where, str(error), "verify the store") from error
                sizes[index] = header.size
        return sizes

    def values(self, name: str) -> np.ndarray:
        if name in self._numbers:
            return column_of(self.store, name).numpy().reshape(-1)
        raise self._unknown(name, "is not a field with one number per record", self._numbers)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        lists = [own for own, field in self._fields.items() if field == Field(field.dtype, (None,))]
        if name in lists:
            ragged = column_of(self.store, name)
            return ragged.values.numpy(), ragged.lengths.numpy()
        if name in self._numbers:
            values = self.values(name)
            return values, np.ones(len(values), np.int64)
        known = [*self._numbers, *lists]
        raise self._unknown(name, "is not a field with numbers per record", known)

    def _unknown(self, name: str | None, what: str, known: Sequence[str]) -> ConfigError:
        fix = "choose order=full"
        if known:
            fix = f"choose one of {', '.join(known)}"
        if self._store is None:
            what = "this data cannot tell the fields of its records before it reads them"
            fix = "give weights by order=weighted order.file=FILE, or choose order=full"
        return ConfigError(200, f"order.field = {name}", what, fix)
