"""One field of all records of a store: the facts that an order may ask for."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, KnowsColumns, Ragged, RecordStore
from framework.errors import ConfigError

BLOCK_RECORDS = 1024  # read at a time from a store that has no columns


def column_of(store: RecordStore, name: str) -> Any:
    """Return a field of all records, as ``read`` returns it.

    A store that cannot read the field alone is read as a whole.
    """
    if isinstance(store, KnowsColumns):
        return store.column(name)
    count = store.manifest.num_records
    starts = range(0, max(1, count), BLOCK_RECORDS)
    blocks = [torch.arange(start, min(start + BLOCK_RECORDS, count)) for start in starts]
    return joined([store.read(block)[name] for block in blocks])


def lengths_of(store: RecordStore, name: str) -> Tensor:
    """Return the rows of each record of a ragged field: int64 [num_records]."""
    if isinstance(store, KnowsColumns):
        return store.lengths(name)
    return column_of(store, name).lengths


def joined(parts: Sequence[Any]) -> Any:
    """Return the values of a field from several places, one after another."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Ragged):
        values = torch.cat([part.values for part in parts])
        return Ragged(values, torch.cat([part.lengths for part in parts]))
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [value for part in parts for value in part]


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

    def values(self, name: str) -> np.ndarray:
        fields = self.store.manifest.fields
        known = [own for own, field in fields.items() if is_number(field)]
        if name in known:
            return column_of(self.store, name).numpy()
        raise _unknown(name, "is not a field with one number per record", known)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        fields = self.store.manifest.fields
        lists = [own for own, field in fields.items() if _is_list(field)]
        if name in lists:
            ragged = column_of(self.store, name)
            return ragged.values.numpy(), ragged.lengths.numpy()
        known = [own for own, field in fields.items() if is_number(field)]
        if name in known:
            values = self.values(name)
            return values, np.ones(len(values), np.int64)
        raise _unknown(name, "is not a field with numbers per record", [*known, *lists])


def is_number(field: Field) -> bool:
    """Return whether a field is one number per record."""
    return field.encoding == "raw" and field.shape == ()


def _is_list(field: Field) -> bool:
    return field.encoding == "ragged" and field.kind == "raw" and field.shape == (None,)


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

    def values(self, name: str) -> np.ndarray:
        raise self._refusal(name)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        raise self._refusal(name)

    def _refusal(self, name: str | None) -> ConfigError:
        what = "this data cannot tell the fields of its records before it reads them"
        return ConfigError(200, f"order.field = {name or 'null'}", what, "choose order=full")
