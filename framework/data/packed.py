"""A Source over a packed store, wherever it is kept while training: on disk, in memory, or on the device."""

import os
from collections.abc import Callable

from framework.contracts.data import SourceContext
from framework.contracts.records import RecordStore
from framework.data.source import StoreSource
from framework.errors import ConfigError
from framework.store.page_cache import drop_cached
from framework.store.resident import ResidentStore
from framework.store.shards import ShardedStore
from framework.store.staging import Staged, files_of, remove_leftovers

STAGES = ("none", "cold", "ram", "device")


def packed_source(
    path: str, open_file: Callable[[str], RecordStore], stage: str, context: SourceContext
) -> StoreSource:
    """The store at ``path``, a file or a directory of them. ConfigError C171, C172."""
    if stage not in STAGES:
        raise ConfigError(
            172,
            f"data.stage = {stage}",
            "not a place to keep data",
            f"choose one of {', '.join(STAGES)}",
        )
    if stage == "ram":
        staged = Staged(path)
        try:
            return StoreSource(_opened(staged.path, open_file), context, staged.close)
        except BaseException:
            staged.close()
            raise
    remove_leftovers()
    if stage == "cold":
        drop_cached(list(files_of(path)))
    store = _opened(path, open_file)
    return StoreSource(_resident(store, context) if stage == "device" else store, context)


def _opened(path: str, open_file: Callable[[str], RecordStore]) -> RecordStore:
    return ShardedStore(path, open_file) if os.path.isdir(path) else open_file(path)


def _resident(store: RecordStore, context: SourceContext) -> RecordStore:
    if context.num_workers:
        what = "needs no workers: a batch is one gather on the device"
        raise ConfigError(
            171,
            f"workers.num = {context.num_workers}, data.stage = device",
            what,
            "leave workers.num out",
        )
    transform = context.transform
    if transform.size is not None or transform.num_draws or transform.function is not None:
        what = "a transform works on the host, the data is on the device"
        raise ConfigError(
            171,
            "data.stage = device",
            what,
            "set transform=none and choose an augment, or data.stage=ram",
        )
    return ResidentStore(store, context.device)
