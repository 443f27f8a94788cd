"""Open a store by what is there, not by its name."""

import os

from framework.contracts.records import RecordStore
from framework.errors import DataError
from framework.store import shards


def open_store(path: str) -> RecordStore:
    """The HDF5 or LMDB file at ``path``, or the directory of such files. Nothing is read before its manifest is asked for."""
    return shards.ShardedStore(path, open_file) if os.path.isdir(path) else open_file(path)


def open_file(path: str) -> RecordStore:
    """The HDF5 or LMDB file at ``path``."""
    from framework.store import hdf5_store as hdf5  # noqa: PLC0415  # only here do the two meet
    from framework.store import lmdb_btree as btree  # noqa: PLC0415  # only here do the two meet
    from framework.store import lmdb_store as lmdb  # noqa: PLC0415  # only here do the two meet

    head = b""
    if os.path.isfile(path):  # a pipe would be waited for
        try:
            with open(path, "rb") as file:
                head = file.read(20)
        except OSError as error:
            raise DataError(
                101,
                path,
                f"cannot be read: {error.strerror}",
                "look at its permissions and the disk",
            ) from error
    if head[16:] == btree.META_MAGIC.to_bytes(4, "little"):
        return lmdb.LMDBStore(path)
    return (
        hdf5.HDF5Store(path)
        if head.startswith(hdf5.SIGNATURE) or path.endswith(".h5")
        else lmdb.LMDBStore(path)
    )
