"""Open a store by what is there, not by its name."""

import os

from framework.contracts import RecordStore
from framework.data import shards
from framework.errors import DataError


def open_store(path: str) -> RecordStore:
    """The HDF5 or LMDB file at ``path``, or the directory of such files. Nothing is read before its manifest is asked for."""
    return shards.ShardedStore(path, open_file) if os.path.isdir(path) else open_file(path)


def open_file(path: str) -> RecordStore:
    """The HDF5 or LMDB file at ``path``."""
    from framework.data import btree, hdf5, lmdb  # noqa: PLC0415  # only here do the two meet

    head = b""
    if os.path.isfile(path):  # a pipe would be waited for
        try:
            with open(path, "rb") as file:
                head = file.read(20)
        except OSError as error:
            raise DataError(101, path, f"cannot be read: {error.strerror}", "look at its permissions and the disk") from error
    if head[16:] == btree.META_MAGIC.to_bytes(4, "little"):
        return lmdb.LMDBStore(path)
    return hdf5.HDF5Store(path) if head.startswith(hdf5.SIGNATURE) or path.endswith(".h5") else lmdb.LMDBStore(path)
