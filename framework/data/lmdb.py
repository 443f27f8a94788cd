"""``data=lmdb``: read a packed LMDB store."""

from framework.contracts.data import SourceContext
from framework.data.packed import packed_source
from framework.data.source import StoreSource
from framework.store.lmdb_store import LMDBStore


def lmdb_source(path: str, stage: str = "none", *, context: SourceContext) -> StoreSource:
    """Return a source of the records of a LMDB store.

    Args:
        path: The store: a file, or a directory of shards.
        stage: Where to keep the data: ``none`` (on disk), ``cold``, ``ram`` or ``device``.
        context: What the run gives every source.

    """
    return packed_source(path, LMDBStore, stage, context)
