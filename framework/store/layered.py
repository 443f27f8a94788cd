"""A later version of a store: the store as it was packed, and a layer for each edit since.

A layer is an HDF5 store. What its records mean depends on the edit: see ``EDITS``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records, RecordStore
from framework.errors import DataError
from framework.store.columns import column_of, lengths_of
from framework.store.concatenated import Concatenation, picked
from framework.store.hdf5_store import HDF5Store
from framework.store.manifest import DAMAGE, from_json, to_json

OPTION = "layer"  # of a layer's manifest: the edit, as a block
DROPPED = "dropped"  # the field of a layer that drops records
FIX = "restore it from a copy, or remove it and all later layers"


@dataclass(frozen=True)
class Edit:
    """How a version came from the one before.

    Attributes:
        number: The number of the version.
        kind: ``append``, ``drop``, ``relabel`` or ``add``; ``pack`` of version 1.
        words: The change as it was typed.
        time: When it was made, such as ``2026-11-24 12:00:00``, in UTC; empty if not known.
        parent: The digest of the version before.
        manifest: Describes the version.
    """

    number: int
    kind: str
    words: str
    time: str
    parent: str
    manifest: Manifest


def layer_manifest(fields: Mapping[str, Field], num_records: int, edit: Edit) -> Manifest:
    """Return the manifest of a layer's file."""
    block = {**edit.__dict__, "manifest": to_json(edit.manifest)}
    return Manifest(num_records, fields, source=edit.words, options={OPTION: block})


def read_edit(path: str, manifest: Manifest) -> Edit:
    """Return the edit in the manifest of the layer at ``path``. DataError D251 or D104."""
    block: Any = manifest.options.get(OPTION)
    try:
        number = int(block["number"])
        kind, words, when, parent = (
            str(block[name]) for name in ("kind", "words", "time", "parent")
        )
        version = replace(from_json(path, block["manifest"]), version=number, shards=())
    except DAMAGE as error:
        raise _misfit(path, "is not a layer of a store") from error
    return Edit(number, kind, words, when, parent, version)


@final
class LayeredStore:
    """A RecordStore over a later version. Nothing is read before the manifest is needed.

    Args:
        path: The store's file or folder.
        base: The store as it was packed.
        layers: The path of the layer of each later version, from version 2 on.
    """

    def __init__(self, path: str, base: RecordStore, layers: Sequence[str]) -> None:
        self.path = path
        self.base = base
        self.layers = [HDF5Store(layer) for layer in layers]
        self._history: list[Edit] = []
        self._top: RecordStore | None = None

    @property
    def history(self) -> list[Edit]:
        """The edit of each version, and for version 1 what was packed."""
        _ = self.top
        return self._history

    @property
    def top(self) -> RecordStore:
        """The store that reads this version. DataError D251 for a layer that does not fit."""
        if self._top is None:
            store = self.base
            history = [Edit(1, "pack", "as packed", "", "", store.manifest)]
            for number, layer in enumerate(self.layers, 2):
                edit = read_edit(layer.path, layer.manifest)
                if (edit.number, edit.parent) != (number, store.manifest.digest):
                    what = "was made for another store, or for another version of it"
                    raise _misfit(layer.path, what)
                if edit.kind not in EDITS:
                    raise _misfit(layer.path, f"has the edit {edit.kind!r}, which is unknown")
                store = EDITS[edit.kind](store, layer, edit.manifest)
                history.append(edit)
            self._history = history
            self._top = store
        return self._top

    @property
    def manifest(self) -> Manifest:
        return self.top.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self.top.read(indices, views)

    def column(self, name: str) -> Any:
        return column_of(self.top, name)

    def lengths(self, name: str) -> Tensor:
        return lengths_of(self.top, name)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self.top.damaged(indices, records)

    def key(self, index: int) -> str:
        return self.top.key(index)

    def name(self, index: int) -> str:
        return self.top.name(index)

    def check(self) -> None:
        self.top.check()

    def close(self) -> None:
        for store in (self.base, *self.layers):  # also if one of them could not be opened
            store.close()


@final
class AppendedStore(Concatenation):
    """The records of the version before, then those of the layer."""

    def __init__(self, before: RecordStore, layer: HDF5Store, manifest: Manifest) -> None:
        self._manifest = manifest
        self._parts = (before, layer)
        fits = before.manifest.fields == layer.manifest.fields == manifest.fields
        _check(layer, fits and sum(self.sizes) == manifest.num_records)

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def sizes(self) -> list[int]:
        return [part.manifest.num_records for part in self._parts]

    def part(self, number: int) -> RecordStore:
        return self._parts[number]

    def check(self) -> None:
        for part in self._parts:
            part.check()

    def close(self) -> None:
        for part in self._parts:
            part.close()


class _Edited:
    """What versions share whose records are those of the version before, in its order."""

    def __init__(self, before: RecordStore, layer: HDF5Store, manifest: Manifest) -> None:
        self.before = before
        self.layer = layer
        self.manifest = manifest

    def rows(self, indices: Tensor) -> Tensor:
        """Return the numbers that records have in the version before: both int64 [B]."""
        return indices

    def key(self, index: int) -> str:
        return self.before.key(int(self.rows(torch.tensor([index]))))

    def name(self, index: int) -> str:
        return self.before.name(int(self.rows(torch.tensor([index]))))

    def check(self) -> None:
        self.before.check()
        self.layer.check()

    def close(self) -> None:
        self.before.close()
        self.layer.close()


@final
class DroppedStore(_Edited):
    """The records of the version before, without some."""

    def __init__(self, before: RecordStore, layer: HDF5Store, manifest: Manifest) -> None:
        super().__init__(before, layer, manifest)
        self._kept_before: Tensor | None = None
        count = before.manifest.num_records - manifest.num_records
        is_one = layer.manifest.num_records == 1
        fits = layer.manifest.fields == {DROPPED: Field("int64", (count,))}
        _check(layer, fits and is_one and before.manifest.fields == manifest.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept_before": None}

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self.before.read(self.rows(indices), views)

    def column(self, name: str) -> Any:
        rows = self.rows(torch.arange(self.manifest.num_records))
        return picked(column_of(self.before, name), rows)

    def lengths(self, name: str) -> Tensor:
        rows = self.rows(torch.arange(self.manifest.num_records))
        return lengths_of(self.before, name)[rows]

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        rows = self.rows(indices)
        bad = set(self.before.damaged(rows, records))
        pairs = zip(indices.tolist(), rows.tolist(), strict=True)
        return [index for index, row in pairs if row in bad]

    def rows(self, indices: Tensor) -> Tensor:
        if self._kept_before is None:
            dropped = self._dropped()
            # How many kept records precede each dropped one. It is ascending, as ``dropped`` is.
            self._kept_before = dropped - torch.arange(len(dropped))
        return indices + torch.searchsorted(self._kept_before, indices.contiguous(), right=True)

    def _dropped(self) -> Tensor:
        """Return the dropped records, ascending. DataError D251 if the layer is damaged."""
        index = torch.tensor([0])
        records = self.layer.read(index)
        dropped = records[DROPPED][0]
        is_inside = len(dropped) > 0 and int(dropped[0]) >= 0
        is_inside = is_inside and int(dropped[-1]) < self.before.manifest.num_records
        is_ascending = bool((dropped.diff() > 0).all())
        _check(self.layer, is_inside and is_ascending and not self.layer.damaged(index, records))
        return dropped


@final
class ColumnsStore(_Edited):
    """The records of the version before, with new values of some fields."""

    def __init__(self, before: RecordStore, layer: HDF5Store, manifest: Manifest) -> None:
        super().__init__(before, layer, manifest)
        own = layer.manifest
        counts = {before.manifest.num_records, own.num_records, manifest.num_records}
        fields = {**before.manifest.fields, **own.fields}
        is_ordered = list(fields) == list(manifest.fields)
        _check(layer, len(counts) == 1 and is_ordered and fields == manifest.fields)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self.before.read(indices, views) | self.layer.read(indices, views)

    def column(self, name: str) -> Any:
        return column_of(self._holder(name), name)

    def lengths(self, name: str) -> Tensor:
        return lengths_of(self._holder(name), name)

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        own = self.layer.manifest.fields
        others = self.before.manifest.fields
        values = {name: records[name] for name in own}
        before = {name: records[name] for name in others if name not in own}
        if replaced := own.keys() & others.keys():
            read = self.before.read(indices)
            before |= {name: read[name] for name in replaced}
        bad = {*self.layer.damaged(indices, values), *self.before.damaged(indices, before)}
        return [index for index in indices.tolist() if index in bad]

    def _holder(self, name: str) -> RecordStore:
        return self.layer if name in self.layer.manifest.fields else self.before


EDITS = {
    "append": AppendedStore,
    "drop": DroppedStore,
    "relabel": ColumnsStore,
    "add": ColumnsStore,
}


def _check(layer: HDF5Store, fits: bool) -> None:
    """Raise DataError D251 unless the content of a layer fits its manifest."""
    if not fits:
        raise _misfit(layer.path, "is damaged, or does not fit its store")


def _misfit(path: str, what: str) -> DataError:
    return DataError(251, path, what, FIX)
