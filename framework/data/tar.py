"""``data=tar``: read WebDataset shards where they lie, at any place."""

from collections.abc import Mapping, Sequence

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource
from framework.store.tar_store import TarStore


def tar_source(
    path: str,
    fields: Mapping[str, str] | None = None,
    classes: Sequence[str] | None = None,
    label_pattern: str | None = None,
    labels: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    *,
    context: SourceContext,
) -> StoreSource:
    """Return a source of the records of a shard, a folder of shards, or a pattern.

    The options are those of ``TarStore``. The first run reads all headers, some 20,000 members a
    second, and keeps their places in an index beside each shard.
    """
    return StoreSource(TarStore(path, fields, classes, label_pattern, labels, kinds), context)
