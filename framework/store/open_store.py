"""Opens a store by its content, not by its name."""

import os

from framework.contracts.records import RecordStore
from framework.store.file_format import HEAD_BYTES, file_kind, format_of
from framework.store.identity import read_head
from framework.store.shards import ShardedStore


def open_store(path: str) -> RecordStore:
    """Return the store at ``path``: an HDF5 or LMDB file, or a directory of such files.

    The store reads nothing before its manifest is needed.
    """
    if os.path.isdir(path):
        return ShardedStore(path, open_file)
    return open_file(path)


def files_of(path: str) -> list[str]:
    """Return the files of a store: itself, or those of its folder."""
    if os.path.isdir(path):
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [path]


def open_records(path: str) -> RecordStore:
    """Return the store at ``path``, or one over tar shards or Parquet files with usual fields.

    Nothing is written: an index of shards that does not exist yet is only kept in memory.
    """
    from framework.store.parquet_store import ParquetStore  # noqa: PLC0415
    from framework.store.tar_store import TarStore  # noqa: PLC0415

    present = format_of(path)
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

    kind = None
    if os.path.isfile(path):
        kind = file_kind(read_head(path, HEAD_BYTES))
    if kind == "hdf5" or (kind is None and path.endswith((".h5", ".hdf5"))):
        return HDF5Store(path)
    return LMDBStore(path)
