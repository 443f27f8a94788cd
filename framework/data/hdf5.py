"""``data=hdf5``: read a packed HDF5 store."""

from framework.contracts.data import SourceContext
from framework.data.packed import packed_source
from framework.data.source import StoreSource
from framework.store.hdf5_store import HDF5Store


def hdf5_source(path: str, stage: str = "none", *, context: SourceContext) -> StoreSource:
    """Return a source of the records of a HDF5 store.

    Args:
        path: The store: a file, or a directory of shards.
        stage: Where to keep the data: ``none`` (on disk), ``cold``, ``ram`` or ``device``.
        context: What the run gives every source.

    """
    return packed_source(path, HDF5Store, stage, context)
