"""What the stores in one file share, and their writers: opening, identity, names and publishing."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import DataError
from framework.store.checksum import as_stored, content_crcs, digest
from framework.store.identity import Identity, identify
from framework.store.manifest import to_json
from framework.system.durable import abandon, publish


class MappedFile(Protocol):
    """A store's file, mapped by this process."""

    manifest: Manifest

    def keys(self, indices: Tensor) -> list[Any]: ...


MappedT = TypeVar("MappedT", bound=MappedFile)


class ProcessMaps(NamedTuple, Generic[MappedT]):
    """The maps of one process, which a forked child must not use."""

    process: int
    maps: MappedT


class FileStore(ABC, Generic[MappedT]):
    """A RecordStore over one file. Each process maps the file at its first read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        self._mapped: ProcessMaps[MappedT] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._manifest = self._open().manifest
        return self._manifest

    @abstractmethod
    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records: ...

    @abstractmethod
    def damaged(self, indices: Tensor, records: Records) -> list[int]: ...

    def key(self, index: int) -> str:
        return bytes(self._open().keys(torch.tensor([index]))[0]).decode(errors="surrogateescape")

    def name(self, index: int) -> str:
        key = ""
        with suppress(DataError):  # this record may be the damaged one
            key = self.key(index)
        return f"{self.path}: record {index} ({key})".removesuffix(" ()")

    def check(self) -> None:
        identify(self.path, self._identity)

    def close(self) -> None:
        self._mapped = None

    def _open(self) -> MappedT:
        """Return the maps of this process. They are complete before other threads see them."""
        mapped = self._mapped
        # After a fork, the maps that are here belong to the parent.
        if mapped is not None and mapped.process == os.getpid():
            return mapped.maps
        identity = identify(self.path, self._identity)
        maps = self._map()
        self._identity = identify(self.path, identity)  # again: mapping opens the file anew
        self._mapped = ProcessMaps(os.getpid(), maps)
        return maps

    @abstractmethod
    def _map(self) -> MappedT: ...


class FileWriter(ABC):
    """A RecordWriter of one file, which is published by ``close``.

    Args:
        path: the file to write.
        fields: the records' fields.
        num_records: the exact number of records that follow.
    """

    def __init__(self, path: str, fields: Mapping[str, Field], num_records: int) -> None:
        self.path = Path(path)
        self.fields = fields
        self._num_records = num_records
        self._crcs: list[int] = []
        self._is_open = True
        self._publish = publish(self.path)
        self._temporary = self._publish.__enter__()

    def write(self, records: Records, keys: Sequence[str]) -> None:
        stored = {name: as_stored(records[name], field) for name, field in self.fields.items()}
        crcs = content_crcs(stored, self.fields)
        self._append(stored, [key.encode(errors="surrogateescape") for key in keys], crcs)
        self._crcs += crcs

    def close(self, manifest: Manifest) -> None:
        if len(self._crcs) != self._num_records:
            what = f"{len(self._crcs)} records written, {self._num_records} announced"
            raise DataError(105, str(self.path), what, "report this")
        self._finish(to_json(replace(manifest, digest=digest(self._crcs))))
        self._is_open = False
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._drop()
            abandon(self._publish)

    @abstractmethod
    def _append(self, records: Records, keys: list[bytes], crcs: list[int]) -> None:
        """Write the next records. ``crcs`` are their checksums, without those before."""

    @abstractmethod
    def _finish(self, manifest: str) -> None:
        """Write what belongs to all records, and end the temporary file."""

    @abstractmethod
    def _drop(self) -> None:
        """Let go of the temporary file."""
