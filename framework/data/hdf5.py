"""``data=hdf5``: read a packed HDF5 store."""

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource, packed_source
from framework.store.hdf5_store import HDF5Store


def hdf5_source(path: str, stage: str = "none", *, context: SourceContext) -> StoreSource:
    """Return a source of a store, which is a file or a directory of shards.

    ``stage`` is where to keep the data: ``none`` (on disk), ``cold``, ``ram`` or ``device``.
    """
    return packed_source(path, HDF5Store, stage, context)
