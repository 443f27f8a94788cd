"""``data=parquet``: read Parquet files and Hugging Face datasets where they lie."""

from collections.abc import Mapping, Sequence

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource
from framework.store.parquet_store import ParquetStore


def parquet_source(
    path: str,
    fields: Mapping[str, str] | None = None,
    classes: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    cache_mb: int = 512,
    *,
    context: SourceContext,
) -> StoreSource:
    """Return a source of the rows of a file, a folder of one split, or a pattern.

    The options are those of ``ParquetStore``, which says what random order costs. ``order=block``
    with blocks as large as the groups of rows decodes each group about once per epoch.
    """
    store = ParquetStore(path, fields, classes, labels, kinds, cache_mb)
    source = StoreSource(store, context)
    store.is_random = source.order.shuffle and source.order.block is None
    return source
