"""A store that is a directory: ``manifest.json`` and numbered files, each a whole store of its own."""

import os
from collections.abc import Callable, Collection
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import Manifest, Records, RecordStore
from framework.errors import DataError
from framework.store.foreign import IN_FOLDER, lmdb_advice
from framework.store.identity import Identity, identify
from framework.store.manifest import from_json

MANIFEST = "manifest.json"
MAX_NAMED = 10


@final
class ShardedStore:
    """A RecordStore over the files of a directory; each is opened at its first read. ``open_file`` opens one by its path."""

    def __init__(self, path: str, open_file: Callable[[str], RecordStore]) -> None:
        self.path, self._open_file = path, open_file
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        self._stores: dict[int, RecordStore] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": {}}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            name = os.path.join(self.path, MANIFEST)
            if not os.path.isfile(name):
                if os.path.isfile(os.path.join(self.path, IN_FOLDER)):
                    raise DataError(
                        103,
                        self.path,
                        "an LMDB folder, but not a store of ours",
                        lmdb_advice(self.path),
                    )
                what = f"a directory without {MANIFEST}"
                raise DataError(
                    103,
                    self.path,
                    what,
                    "give a store made by 'paceline pack', or choose data=folder for image files",
                )
            self._identity = identify(name)
            with open(name, "rb") as file:
                manifest = from_json(self.path, file.read())
            self._check_files(manifest)
            self._starts = torch.tensor(
                [0] + [shard.num_records for shard in manifest.shards]
            ).cumsum(0)
            self._manifest = manifest
        return self._manifest

    def _check_files(self, manifest: Manifest) -> None:
        """All that is wrong with the files at once: missing ones, others' ones, sizes."""
        wanted = {shard.name: shard.size_bytes for shard in manifest.shards}
        if any(os.path.basename(name) != name or name in ("", ".", "..") for name in wanted):
            raise DataError(
                104, self.path, "its manifest names files outside the directory", "pack it again"
            )
        found = {
            entry.name: entry.stat().st_size
            for entry in os.scandir(self.path)
            if entry.is_file() and entry.name != MANIFEST
        }
        wrong = [f"{name} is missing" for name in wanted if name not in found]
        wrong += [
            f"{name} has {found[name]} bytes, not {size}"
            for name, size in wanted.items()
            if found.get(name, size) != size
        ]
        wrong += [f"{name} does not belong here" for name in sorted(found.keys() - wanted.keys())]
        if sum(shard.num_records for shard in manifest.shards) != manifest.num_records:
            wrong.append(f"the files hold other than {manifest.num_records} records")
        if wrong:
            more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
            raise DataError(
                118,
                self.path,
                ", ".join(wrong[:MAX_NAMED]) + more,
                "put the files in order, or pack it again",
            )

    @property
    def first(self) -> RecordStore:
        """The first file's store."""
        return self._store(0)

    def _store(self, number: int) -> RecordStore:
        """File ``number``, opened; DataError D118 where it is another data set's."""
        store = self._stores.get(number)
        if store is None:
            shard = self.manifest.shards[number]
            store = self._open_file(os.path.join(self.path, shard.name))
            found = store.manifest
            if (
                found.num_records != shard.num_records
                or found.fields != self.manifest.fields
                or found.digest != shard.digest
            ):
                where = os.path.join(self.path, shard.name)
                raise DataError(
                    118,
                    where,
                    "is another store's file",
                    "put the files in order, or pack it again",
                )
            self._stores[number] = store
        return store

    def _locate(self, indices: Tensor) -> Tensor:
        """The number of the file that holds each of ``indices``."""
        manifest = self.manifest
        if (
            len(indices)
            and not 0 <= int(indices.min()) <= int(indices.max()) < manifest.num_records
        ):
            raise IndexError(
                f"records {int(indices.min())}..{int(indices.max())} of {manifest.num_records}"
            )
        return torch.searchsorted(self._starts, indices, right=True) - 1

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        numbers = self._locate(indices)
        parts: list[tuple[Tensor, Records]] = []
        for number in numbers.unique().tolist() or [0]:
            places = (numbers == number).nonzero().squeeze(1)
            parts.append(
                (places, self._store(number).read(indices[places] - self._starts[number], views))
            )
        return (
            parts[0][1]
            if len(parts) == 1
            else {name: _merged(parts, name, len(indices)) for name in self.manifest.fields}
        )

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        numbers = self._locate(indices)
        found: list[int] = []
        for number in numbers.unique().tolist():
            places = (numbers == number).nonzero().squeeze(1)
            part = {name: _taken(values, places) for name, values in records.items()}
            start = int(self._starts[number])
            found += [
                start + bad for bad in self._store(number).damaged(indices[places] - start, part)
            ]
        return found

    def _at(self, index: int) -> tuple[RecordStore, int]:
        number = int(self._locate(torch.tensor([index])))
        return self._store(number), index - int(self._starts[number])

    def key(self, index: int) -> str:
        store, local = self._at(index)
        return store.key(local)

    def name(self, index: int) -> str:
        store, local = self._at(index)
        return store.name(local)

    def check(self) -> None:
        if self._identity is not None:
            identify(os.path.join(self.path, MANIFEST), self._identity)
        for store in self._stores.values():
            store.check()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores = {}


def _merged(parts: list[tuple[Tensor, Records]], name: str, count: int) -> Any:
    first = parts[0][1][name]
    if isinstance(first, Tensor):
        merged = first.new_empty(count, *first.shape[1:])
        for places, records in parts:
            merged[places] = records[name]
        return merged
    values: list[Any] = [None] * count
    for places, records in parts:
        for place, value in zip(places.tolist(), records[name], strict=True):
            values[place] = value
    return values


def _taken(values: Any, places: Tensor) -> Any:
    return (
        values[places]
        if isinstance(values, Tensor)
        else [values[place] for place in places.tolist()]
    )
