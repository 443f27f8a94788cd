"""Opens a store by its content. Stores of several files, of stores, and of an input."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts import records as contract
from framework.contracts.records import Manifest, Ragged, Records, RecordStore, joined
from framework.errors import ConfigError, DataError, listed
from framework.store import file_store, foreign
from framework.store.files import Identity, ask_item_files, identify, unreadable
from framework.store.gather import check_range, merged, taken

MANIFEST = "manifest.json"


def open_store(path: str) -> RecordStore:
    """Return the store at ``path``: an HDF5 or LMDB file, or a directory of such files.

    The store reads nothing before its manifest is needed.
    """
    return ShardedStore(path, open_file) if os.path.isdir(path) else open_file(path)


def files_of(path: str) -> list[str]:
    """Return the files of a store: itself, or those of its folder."""
    if os.path.isdir(path):
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [path]


def open_records(path: str) -> RecordStore:
    """Return the store at ``path``, also over tar shards or Parquet files. Nothing is written."""
    from framework.store.parquet_store import ParquetStore  # noqa: PLC0415
    from framework.store.tar_store import TarStore  # noqa: PLC0415

    present = foreign.format_of(path)
    if present is not None and present.choice == "tar":
        return TarStore(path, keep=False)
    if present is not None and present.choice == "parquet":
        return ParquetStore(path)
    return open_store(path)


def open_file(path: str) -> RecordStore:
    """Return the HDF5 or LMDB store in the file ``path``."""
    # h5py and lmdb load only when a file is opened.
    from framework.store.hdf5_store import HDF5Store  # noqa: PLC0415
    from framework.store.lmdb_store import LMDBStore  # noqa: PLC0415

    present = foreign.format_of(path)
    is_lmdb = not path.endswith((".h5", ".hdf5"))
    if present is not None and present.choice in ("hdf5", "lmdb"):
        is_lmdb = present.choice == "lmdb"
    if is_lmdb:
        return LMDBStore(path)
    return HDF5Store(path)


class Concatenation(RecordStore):
    """A RecordStore of parts, which are stores, too. Records are numbered through."""

    has_columns = True

    def __init__(self, stores: Sequence[RecordStore] = ()) -> None:
        self._stores = dict(enumerate(stores))  # those that are open, by number

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The number of records of each part."""

    def part(self, number: int) -> RecordStore:
        return self._stores[number]

    @cached_property
    def starts(self) -> Tensor:
        """Where each part begins, and the end: int64 [parts + 1]."""
        return torch.tensor([0, *self.sizes]).cumsum(0)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        spots: list[Tensor] = []
        parts: list[Records] = []
        for number, places in self._split(indices):
            spots.append(places)
            parts.append(self.part(number).read(indices[places] - self.starts[number], views))
        if len(parts) == 1:
            return parts[0]
        order = torch.argsort(torch.cat(spots))
        return {name: merged([part[name] for part in parts], order) for name in parts[0]}

    @property
    def paths(self) -> list[str]:
        return [path for store in self._all for path in store.paths]

    def places(self, indices: Tensor) -> contract.Places:
        files = torch.empty_like(indices)
        starts: dict[str, Tensor] = {}
        for number, places in self._split(indices):
            own = self.part(number).places(indices[places] - self.starts[number])
            files[places] = own.files + self._first_files[number]
            for name, values in own.starts.items():  # the raw fields, in each part
                if name not in starts:
                    starts[name] = torch.empty_like(indices)
                starts[name][places] = values
        return contract.Places(files, starts)

    @cached_property
    def _first_files(self) -> list[int]:
        return [0, *accumulate(len(store.paths) for store in self._all)]

    def column(self, name: str) -> Any:
        return joined([store.column(name) for store in self._all])

    def lengths(self, name: str) -> Tensor:
        return torch.cat([store.lengths(name) for store in self._all])

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        damaged: list[int] = []
        for number, places in self._split(indices):
            start = int(self.starts[number])
            part = {name: taken(values, places) for name, values in records.items()}
            bad = self.part(number).damaged(indices[places] - start, part)
            damaged += [start + index for index in bad]
        return damaged

    def key(self, index: int) -> str:
        store, local = self._at(index)
        return store.key(local)

    def name(self, index: int) -> str:
        store, local = self._at(index)
        return store.name(local)

    def check(self) -> None:
        for store in self._stores.values():
            store.check()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    @property
    def _all(self) -> list[RecordStore]:
        return [self.part(number) for number in range(len(self.sizes))]

    def _split(self, indices: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of each needed part, and the places of its records in ``indices``."""
        check_range(indices, int(self.starts[-1]))
        numbers = torch.searchsorted(self.starts, indices.contiguous(), right=True) - 1
        for number in numbers.unique().tolist() or [0]:
            yield number, (numbers == number).nonzero().squeeze(1)

    def _at(self, index: int) -> tuple[RecordStore, int]:
        ((number, _),) = self._split(torch.tensor([index]))
        return self.part(number), index - int(self.starts[number])


@final
class MixedStore(Concatenation):
    """Stores by name, one after another. ConfigError C203 for none, other fields or classes."""

    def __init__(self, stores: Mapping[str, RecordStore]) -> None:
        if not stores:
            fix = "give 'data.train={NAME: PATH, NAME: PATH}'"
            raise ConfigError(203, "data.train = {}", "names no store", fix)
        super().__init__(list(stores.values()))
        self.stores = dict(stores)
        path, *others = self.stores
        first = self.stores[path].manifest
        for other in others:
            second = self.stores[other].manifest
            names = dict.fromkeys([*first.fields, *second.fields])
            differs = [name for name in names if first.fields.get(name) != second.fields.get(name)]
            where = f"data.train = {{{path}, {other}}}"
            if differs:
                what = f"they differ in the fields {', '.join(differs)}"
                raise ConfigError(203, where, what, "pack both alike")
            if list(first.classes) != list(second.classes):
                fix = "pack both with the same input.classes=[...]"
                raise ConfigError(203, where, "they number their classes differently", fix)

    @property
    def sizes(self) -> list[int]:
        return [store.manifest.num_records for store in self.stores.values()]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for store in self.stores.values() for note in contract.notes_of(store))

    def described(self) -> Manifest:
        own = {name: store.manifest for name, store in self.stores.items()}
        source = ", ".join(f"{name}: {manifest.source}" for name, manifest in own.items())
        digests = [manifest.digest for manifest in own.values()]
        digest = ""
        if all(digests):
            digest = hashlib.sha256("".join(digests).encode()).hexdigest()
        counts = [manifest.class_counts for manifest in own.values()]
        totals: list[int] = []  # none if a store has none
        if all(counts):
            totals = list(map(sum, zip(*counts, strict=True)))
        first, count = next(iter(own.values())), sum(self.sizes)
        return Manifest(count, first.fields, first.classes, totals, source=source, digest=digest)


@final
class ShardedStore(Concatenation):
    """A RecordStore over a directory: ``manifest.json``, and files that ``open_file`` opens."""

    def __init__(self, path: str, open_file: Callable[[str], RecordStore]) -> None:
        super().__init__()
        self.path = path
        self._open_file = open_file
        self._identity: Identity | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": {}}

    def described(self) -> Manifest:
        path = os.path.join(self.path, MANIFEST)
        try:
            entries = [entry for entry in os.scandir(self.path) if entry.is_file()]
            present = {entry.name: entry.stat().st_size for entry in entries}
            content: bytes | None = None
            if present.pop(MANIFEST, None) is not None:
                self._identity = identify(path)
                with open(path, "rb") as file:
                    content = file.read()
        except OSError as error:
            raise unreadable(self.path, error) from error
        if content is None and foreign.IN_FOLDER in present:
            from framework.store.lmdb_store import lmdb_advice  # noqa: PLC0415

            what = "is an LMDB folder, but not a Paceline store"
            raise DataError(103, self.path, what, lmdb_advice(self.path))
        if content is None:
            foreign.refuse_other(self.path, "hdf5")
            fix = "give a store made by 'paceline pack', or choose data=folder for image files"
            raise DataError(103, self.path, f"a directory without {MANIFEST}", fix)
        manifest = file_store.from_json(self.path, content)
        sizes = {shard.name: shard.size_bytes for shard in manifest.shards}
        if any(os.path.basename(name) != name or name in ("", ".", "..") for name in sizes):
            what = "its manifest names files outside the directory"
            raise DataError(104, self.path, what, "pack it again")
        wrong = [f"{name} is missing" for name in sizes if name not in present]
        for name, size in sizes.items():
            if present.get(name, size) != size:
                wrong.append(f"{name} has {present[name]} bytes, not {size}")
        others = sorted(present.keys() - sizes.keys())
        wrong += [f"{name} does not belong here" for name in others]
        if sum(shard.num_records for shard in manifest.shards) != manifest.num_records:
            wrong.append(f"the files do not hold {manifest.num_records} records")
        if wrong:
            fix = "put the files in order, or pack it again"
            raise DataError(118, self.path, listed(wrong), fix)
        return manifest

    @property
    def sizes(self) -> list[int]:
        return [shard.num_records for shard in self.manifest.shards]

    def check(self) -> None:
        if self._identity is not None:
            identify(os.path.join(self.path, MANIFEST), self._identity)
        super().check()

    def close(self) -> None:
        super().close()
        self._stores = {}

    def part(self, number: int) -> RecordStore:
        """Return the store in a file. DataError D118 if the file belongs to another data set."""
        if number not in self._stores:
            shard = self.manifest.shards[number]
            path = os.path.join(self.path, shard.name)
            store = self._open_file(path)
            own = store.manifest
            expected = (shard.num_records, self.manifest.fields, shard.digest)
            if (own.num_records, own.fields, own.digest) != expected:
                fix = "put the files in order, or pack it again"
                raise DataError(118, path, "is another store's file", fix)
            self._stores[number] = store
        return self._stores[number]


class _InputStore(RecordStore):
    """A store of the records of an input, with the fields of the manifest."""

    def __init__(self, keys: Sequence[str], manifest: Manifest, name: Callable[[int], str]) -> None:
        self._manifest = replace(manifest, num_records=len(keys))
        self._keys, self._name = keys, name

    def key(self, index: int) -> str:
        return self._keys[index]

    def name(self, index: int) -> str:
        return self._name(index)

    def _fields(self, records: Records, indices: Tensor) -> Records:
        return {name: _taken(records[name], indices) for name in self.manifest.fields}


@final
class ChunkStore(_InputStore):
    """The records of a chunk, which are in memory."""

    def __init__(
        self, chunk: contract.Chunk, manifest: Manifest, name: Callable[[int], str]
    ) -> None:
        super().__init__(chunk.keys, manifest, name)
        self._records = chunk.records

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self._fields(self._records, indices)


@final
class ItemStore(_InputStore):
    """The records of the items of an input from ``start`` on, one per item. Reads when asked."""

    def __init__(
        self, source: contract.RecordInput, start: int, keys: Sequence[str], manifest: Manifest
    ) -> None:
        super().__init__(keys, manifest, lambda index: source.name(start + index))
        self._source, self._start = source, start

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        numbers = [self._start + index for index in indices.tolist()]
        items = range(numbers[0], numbers[0] + len(numbers))
        if numbers == list(items):
            ask_item_files(self._source, items)
            chunk = self._source.read(items.start, items.stop)
            return self._fields(chunk.records, torch.arange(len(numbers)))
        chunks = [self._source.read(number, number + 1) for number in numbers]
        first = torch.zeros(1, dtype=torch.int64)
        records = [self._fields(chunk.records, first) for chunk in chunks]
        return {name: joined([own[name] for own in records]) for name in records[0]}


def as_read(values: Any) -> Any:
    """Return all values of a chunk's field as a store gives them."""
    return _taken(values, torch.arange(len(values)))


def _taken(values: Any, indices: Tensor) -> Any:
    """Return the values of some records as a store gives them."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values[indices.numpy()])
    chosen = [values[index] for index in indices.tolist()]
    if not chosen or not isinstance(chosen[0], np.ndarray):  # bytes of image files
        return chosen
    lengths = torch.tensor([len(array) for array in chosen])
    return Ragged(torch.from_numpy(np.concatenate(chosen)), lengths)
