"""Several stores with the same fields, one after another, as one store."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import (
    KnowsPlaces,
    Manifest,
    Places,
    Ragged,
    Records,
    RecordStore,
    notes_of,
)
from framework.errors import ConfigError
from framework.store.columns import column_of, joined, lengths_of
from framework.store.file_store import check_range
from framework.store.gather import row_gather
from framework.store.gather_rows import merged, taken


class Concatenation(ABC):
    """A RecordStore of parts, which are stores, too. Records are numbered through."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest: ...

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The number of records of each part."""

    @abstractmethod
    def part(self, number: int) -> RecordStore: ...

    @cached_property
    def starts(self) -> Tensor:
        """Where each part begins, and the end: int64 [parts + 1]."""
        return torch.tensor([0, *self.sizes]).cumsum(0)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        parts: list[tuple[Tensor, Records]] = []
        for number, places in self._split(indices):
            local = indices[places] - self.starts[number]
            parts.append((places, self.part(number).read(local, views)))
        if len(parts) == 1:
            return parts[0][1]
        order = torch.argsort(torch.cat([places for places, _ in parts]))
        return {name: _merged(parts, name, order) for name in self.manifest.fields}

    @property
    def paths(self) -> list[str]:
        stores = self._all()
        return [path for store in stores if isinstance(store, KnowsPlaces) for path in store.paths]

    def places(self, indices: Tensor) -> Places:
        files = torch.empty_like(indices)
        starts = {name: torch.empty_like(indices) for name in self._located_fields}
        for number, spots in self._split(indices) if starts else ():
            part = self.part(number)
            assert isinstance(part, KnowsPlaces)
            own = part.places(indices[spots] - self.starts[number])
            files[spots] = own.files + self._first_files[number]
            for name, values in starts.items():
                values[spots] = own.starts[name]
        return Places(files, starts)

    @cached_property
    def _first_files(self) -> list[int]:
        """The number of the first file of each part."""
        stores = [store for store in self._all() if isinstance(store, KnowsPlaces)]
        return [0, *accumulate(len(store.paths) for store in stores)]

    @cached_property
    def _located_fields(self) -> list[str]:
        """The fields whose values all parts locate."""
        stores = [store for store in self._all() if isinstance(store, KnowsPlaces)]
        if len(stores) < len(self.sizes):
            return []
        nothing = torch.empty(0, dtype=torch.int64)
        known = [store.places(nothing).starts.keys() for store in stores]
        return [name for name in self.manifest.fields if all(name in names for names in known)]

    def column(self, name: str) -> Any:
        return joined([column_of(store, name) for store in self._all()])

    def lengths(self, name: str) -> Tensor:
        return torch.cat([lengths_of(store, name) for store in self._all()])

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        damaged: list[int] = []
        for number, places in self._split(indices):
            start = int(self.starts[number])
            part = {name: picked(values, places) for name, values in records.items()}
            bad = self.part(number).damaged(indices[places] - start, part)
            damaged += [start + index for index in bad]
        return damaged

    def key(self, index: int) -> str:
        store, local = self._at(index)
        return store.key(local)

    def name(self, index: int) -> str:
        store, local = self._at(index)
        return store.name(local)

    def _all(self) -> list[RecordStore]:
        return [self.part(number) for number in range(len(self.sizes))]

    def _locate(self, indices: Tensor) -> Tensor:
        """Return the number of the file that holds each of ``indices``."""
        count = int(self.starts[-1])
        check_range(indices, count)
        return torch.searchsorted(self.starts, indices.contiguous(), right=True) - 1

    def _split(self, indices: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of each needed file, and the places of its records in ``indices``."""
        numbers = self._locate(indices)
        for number in numbers.unique().tolist() or [0]:
            yield number, (numbers == number).nonzero().squeeze(1)

    def _at(self, index: int) -> tuple[RecordStore, int]:
        number = int(self._locate(torch.tensor([index])))
        return self.part(number), index - int(self.starts[number])


@final
class MixedStore(Concatenation):
    """Stores by name, one after another.

    Raises:
        ConfigError: C203 if there is none, or if their fields or classes differ.
    """

    def __init__(self, stores: Mapping[str, RecordStore]) -> None:
        if not stores:
            fix = "give 'data.train={NAME: PATH, NAME: PATH}'"
            raise ConfigError(203, "data.train = {}", "names no store", fix)
        self.stores = dict(stores)
        self._parts = list(stores.values())
        first, *others = self.stores
        for other in others:
            _check_same(first, self.stores[first].manifest, other, self.stores[other].manifest)

    @property
    def sizes(self) -> list[int]:
        return [store.manifest.num_records for store in self._parts]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for store in self._parts for note in notes_of(store))

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @cached_property
    def _manifest(self) -> Manifest:
        manifests = [store.manifest for store in self._parts]
        sources = [f"{name}: {store.manifest.source}" for name, store in self.stores.items()]
        digests = [manifest.digest for manifest in manifests]
        digest = ""
        if all(digests):
            digest = hashlib.sha256("".join(digests).encode()).hexdigest()
        return replace(
            manifests[0],
            num_records=sum(self.sizes),
            class_counts=_class_counts(manifests),
            source=", ".join(sources),
            options={},
            digest=digest,
            shards=(),
            statistics={},
            first_key=None,
        )

    def part(self, number: int) -> RecordStore:
        return self._parts[number]

    def check(self) -> None:
        for store in self._parts:
            store.check()

    def close(self) -> None:
        for store in self._parts:
            store.close()


def _class_counts(manifests: Sequence[Manifest]) -> list[int]:
    """Return the records of each class of all stores, [] if a store does not tell its own."""
    counts = [manifest.class_counts for manifest in manifests]
    if not all(counts):
        return []
    return [sum(numbers) for numbers in zip(*counts, strict=True)]


def _check_same(path: str, first: Manifest, other: str, second: Manifest) -> None:
    """Check that two stores have the same fields and classes. ConfigError C203."""
    differs = [
        name
        for name in dict.fromkeys([*first.fields, *second.fields])
        if first.fields.get(name) != second.fields.get(name)
    ]
    where = f"data.train = {{{path}, {other}}}"
    if differs:
        what = f"they differ in the fields {', '.join(differs)}"
        raise ConfigError(203, where, what, "pack both alike")
    if list(first.classes) != list(second.classes):
        fix = "pack both with the same input.classes=[...]"
        raise ConfigError(203, where, "they number their classes differently", fix)


def _merged(parts: list[tuple[Tensor, Records]], name: str, order: Tensor) -> Any:
    """Put the values of a field, read from several files, in the order of the batch.

    ``order`` says which of the values of all parts has each place.
    """
    first = parts[0][1][name]
    if isinstance(first, Ragged):
        return merged([(places, records[name]) for places, records in parts])
    if isinstance(first, Tensor):
        # Assigning rows by their places takes ten times as long.
        return row_gather(torch.cat([records[name] for _, records in parts]))(order)
    values = [value for _, records in parts for value in records[name]]
    return [values[place] for place in order.tolist()]


def picked(values: Any, places: Tensor) -> Any:
    """Return the values at ``places`` (int64 [n]) of a field of several records."""
    if isinstance(values, Ragged):
        return taken(values, places)
    if isinstance(values, Tensor):
        return values[places]
    return [values[place] for place in places.tolist()]
