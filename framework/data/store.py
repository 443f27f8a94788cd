"""Open a store by what is in the file, not by its name."""

from framework.contracts import RecordStore


def open_store(path: str) -> RecordStore:
    """The HDF5 or LMDB store at ``path``. Nothing is read before its manifest is asked for."""
    from framework.data import hdf5, lmdb  # noqa: PLC0415  # only here do the two meet

    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        head = b""
    if head[16:] == lmdb.META_MAGIC.to_bytes(4, "little"):
        return lmdb.LMDBStore(path)
    return hdf5.HDF5Store(path) if head.startswith(hdf5.SIGNATURE) or path.endswith(".h5") else lmdb.LMDBStore(path)
