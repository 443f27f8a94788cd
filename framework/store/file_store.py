"""Base classes of stores that are one file, and of the writers of such stores."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, NumberKeys, Records
from framework.errors import DataError
from framework.store.checksum import content_crcs
from framework.store.file_format import refuse_other
from framework.store.identity import Identity, identify
from framework.store.manifest import to_json
from framework.system.durable import abandon, publish


class MappedFile(Protocol):
    """A store's file, mapped by this process."""

    manifest: Manifest

    def keys(self, indices: Tensor) -> Sequence[Any]:
        """Return the name of each record, as a buffer of bytes, if names are stored."""
        ...


MappedT = TypeVar("MappedT", bound=MappedFile)


def check_range(indices: Tensor, count: int) -> None:
    """Raise IndexError if an index is not one of ``count`` records."""
    numbers = indices.numpy()  # whose operators keep Python's lock, which takes less than giving it
    if not len(numbers):
        return
    first, last = np.minimum.reduce(numbers), np.maximum.reduce(numbers)
    if not 0 <= first <= last < count:
        raise IndexError(f"records {first}..{last} of {count}")


class FileStore(ABC, Generic[MappedT]):
    """A RecordStore in one file. Each process maps the file when it first needs it."""

    choice: ClassVar[str]  # of data=, for errors

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        # With the number of the process: a forked child must not use the maps of its parent.
        self._mapped: tuple[int, MappedT] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._manifest = self._open().manifest
        return self._manifest

    @abstractmethod
    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records: ...

    @property
    def paths(self) -> list[str]:
        return [self.path]

    @abstractmethod
    def damaged(self, indices: Tensor, records: Records) -> list[int]: ...

    def key(self, index: int) -> str:
        return self.keys(torch.tensor([index]))[0]

    def keys(self, indices: Tensor) -> list[str]:
        first = self.manifest.first_key
        if first is not None:
            return [str(first + index) for index in indices.tolist()]
        keys = self._open().keys(indices)
        return [bytes(key).decode(errors="surrogateescape") for key in keys]

    def name(self, index: int) -> str:
        key = ""
        with suppress(DataError):  # the name may be for an error about this very record
            key = self.key(index)
        return f"{self.path}: record {index} ({key})".removesuffix(" ()")

    def check(self) -> None:
        identify(self.path, self._identity)

    def close(self) -> None:
        self._mapped = None

    def _open(self) -> MappedT:
        """Return the file as mapped by this process, after mapping it if necessary."""
        mapped = self._mapped
        if mapped is not None and mapped[0] == os.getpid():
            return mapped[1]
        identity = identify(self.path, self._identity)
        refuse_other(self.path, self.choice)
        file = self._map()
        self._identity = identify(self.path, identity)  # the file may be replaced meanwhile
        # Other threads see the mapped file only now, when it is complete.
        self._mapped = os.getpid(), file
        return file

    @abstractmethod
    def _map(self) -> MappedT: ...


class FileWriter(ABC):
    """A RecordWriter of the file ``path``, of exactly ``num_records`` records.

    ``close`` puts the file in its place.
    """

    def __init__(self, path: str, fields: Mapping[str, Field], num_records: int) -> None:
        self.path = Path(path)
        self.fields = fields
        self._num_records = num_records
        self._num_written = 0
        self._first_key: int | None = None
        self._can_number = True  # whether the file may leave out keys that are numbers
        self._digest = hashlib.sha256()
        self._is_open = True
        self._publish = publish(self.path)
        self._temporary = self._publish.__enter__()

    def write(self, records: Records, keys: Sequence[str]) -> None:
        stored = {name: _as_stored(records[name], field) for name, field in self.fields.items()}
        crcs = content_crcs(stored, self.fields)
        if len(keys) != len(crcs):
            what = f"got {len(crcs)} records with {len(keys)} keys"
            raise DataError(105, str(self.path), what, "report this bug")
        self._append(stored, self._kept(keys), crcs)
        self._digest.update(crcs.astype("<u4").tobytes())
        self._num_written += len(crcs)

    def close(self, manifest: Manifest) -> None:
        if self._num_written != self._num_records:
            what = f"{self._num_written} of {self._num_records} records were written"
            raise DataError(105, str(self.path), what, "report this bug")
        digest = self._digest.hexdigest()
        self._finish(to_json(replace(manifest, digest=digest, first_key=self._first_key)))
        self._is_open = False
        self._publish.__exit__(None, None, None)

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._drop()
            abandon(self._publish)

    def _kept(self, keys: Sequence[str]) -> list[bytes] | None:
        """Return the keys to store; None if they are numbers, which are not stored."""
        if isinstance(keys, NumberKeys) and self._can_number:
            if not self._num_written:
                self._first_key = keys.start
            if self._first_key is not None and keys.start == self._first_key + self._num_written:
                return None
        if self._first_key is not None:
            what = f"record {self._num_written} has another key than its number"
            raise DataError(105, str(self.path), what, "report this bug")
        return [key.encode(errors="surrogateescape") for key in keys]

    @abstractmethod
    def _append(self, records: Records, keys: list[bytes] | None, crcs: np.ndarray) -> None:
        """Write the next records and their keys, if keys are stored.

        ``crcs`` are the checksums of these records: uint32 [B].
        """

    @abstractmethod
    def _finish(self, manifest: str) -> None:
        """Write the manifest and all other data of the whole store. Close the temporary file."""

    @abstractmethod
    def _drop(self) -> None:
        """Close the temporary file without completing it."""


def _as_stored(values: Any, field: Field) -> Any:
    if field.encoding in ("image", "frames"):
        return values
    if field.encoding == "ragged":
        return [np.ascontiguousarray(array, dtype=field.dtype) for array in values]
    return np.ascontiguousarray(values, dtype=field.dtype)
