"""A store that is a directory: ``manifest.json`` and files, each of which is a complete store."""

import os
from collections.abc import Callable
from typing import Any, final

from framework.contracts.records import Manifest, RecordStore
from framework.errors import DataError
from framework.store.concatenated import Concatenation
from framework.store.file_format import refuse_unpacked
from framework.store.foreign import IN_FOLDER, lmdb_advice
from framework.store.identity import Identity, identify, unreadable
from framework.store.manifest import from_json

MANIFEST = "manifest.json"
MAX_NAMED = 10


@final
class ShardedStore(Concatenation):
    """A RecordStore over the files of a directory. ``open_file`` opens a file at its first read."""

    def __init__(self, path: str, open_file: Callable[[str], RecordStore]) -> None:
        self.path = path
        self._open_file = open_file
        self._manifest: Manifest | None = None
        self._identity: Identity | None = None
        self._stores: dict[int, RecordStore] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": {}}

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            manifest = self._read_manifest()
            self._check_files(manifest)
            self._manifest = manifest
        return self._manifest

    @property
    def sizes(self) -> list[int]:
        return [shard.num_records for shard in self.manifest.shards]

    @property
    def first(self) -> RecordStore:
        """The store in the first file."""
        return self.part(0)

    def check(self) -> None:
        if self._identity is not None:
            identify(os.path.join(self.path, MANIFEST), self._identity)
        for store in self._stores.values():
            store.check()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores = {}

    def _read_manifest(self) -> Manifest:
        path = os.path.join(self.path, MANIFEST)
        try:
            names = os.listdir(self.path)
            if MANIFEST in names:
                self._identity = identify(path)
                with open(path, "rb") as file:
                    return from_json(self.path, file.read())
        except OSError as error:
            raise unreadable(self.path, error) from error
        if IN_FOLDER in names:
            what = "is an LMDB folder, but not a Paceline store"
            raise DataError(103, self.path, what, lmdb_advice(self.path))
        refuse_unpacked(self.path)
        fix = "give a store made by 'paceline pack', or choose data=folder for image files"
        raise DataError(103, self.path, f"a directory without {MANIFEST}", fix)

    def _check_files(self, manifest: Manifest) -> None:
        """Check the names and sizes of the files, and report all that is wrong at once."""
        sizes = {shard.name: shard.size_bytes for shard in manifest.shards}
        if any(os.path.basename(name) != name or name in ("", ".", "..") for name in sizes):
            what = "its manifest names files outside the directory"
            raise DataError(104, self.path, what, "pack it again")
        present: dict[str, int] = {}
        try:
            for entry in os.scandir(self.path):
                if entry.is_file() and entry.name != MANIFEST:
                    present[entry.name] = entry.stat().st_size
        except OSError as error:
            raise unreadable(self.path, error) from error
        wrong = [f"{name} is missing" for name in sizes if name not in present]
        for name, size in sizes.items():
            if present.get(name, size) != size:
                wrong.append(f"{name} has {present[name]} bytes, not {size}")
        wrong += [f"{name} does not belong here" for name in sorted(present.keys() - sizes.keys())]
        if sum(shard.num_records for shard in manifest.shards) != manifest.num_records:
            wrong.append(f"the files do not hold {manifest.num_records} records")
        if wrong:
            what = ", ".join(wrong[:MAX_NAMED])
            if len(wrong) > MAX_NAMED:
                what += f" and {len(wrong) - MAX_NAMED} more"
            raise DataError(118, self.path, what, "put the files in order, or pack it again")

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
