"""A Source over a packed store that is kept on disk, in memory or on the device."""

import os
from collections.abc import Callable
from contextlib import ExitStack

from framework.contracts.data import SourceContext
from framework.contracts.records import KnowsPlaces, RecordStore
from framework.data.cut_fields import cut_fields
from framework.data.source import StoreSource
from framework.errors import ConfigError, words_of
from framework.store.open_store import ShardedStore, files_of
from framework.store.resident import LockedRecords, ResidentStore, lockable
from framework.store.staging import Staged, drop_cached, remove_leftovers
from framework.system.copy_engine import CopyEngineError

STAGES = ("none", "cold", "ram", "device")


def packed_source(
    path: str, open_file: Callable[[str], RecordStore], stage: str, context: SourceContext
) -> StoreSource:
    """Return a source of the store at ``path``, a file or a directory of files."""
    if stage not in STAGES:
        fix = f"choose one of {', '.join(STAGES)}"
        raise ConfigError(172, f"data.stage = {stage}", "not a place to keep data", fix)
    if stage == "ram":
        return _in_ram(path, open_file, context)
    remove_leftovers()
    if stage == "cold":
        drop_cached(files_of(path))
    store = _opened(path, open_file)
    if stage == "device":
        store = _resident(store, context)
    return StoreSource(store, context)


def _in_ram(
    path: str, open_file: Callable[[str], RecordStore], context: SourceContext
) -> StoreSource:
    with ExitStack() as stack:
        staged = Staged(path)
        stack.callback(staged.close)
        store = _opened(staged.path, open_file)
        locked: LockedRecords | None = None
        notes: tuple[str, ...] = ()
        for_gpu = _read_by_gpu(store, context)
        if for_gpu is not None:
            try:
                locked = LockedRecords(for_gpu, context.device)
                stack.callback(locked.close)
            except (CopyEngineError, OSError) as error:
                why = f"the GPU cannot copy records by itself ({words_of(error)})"
                notes = (f"data.stage=ram: {why}; the cores gather them",)
        to_close = ExitStack()
        source = StoreSource(store, context, to_close.close, locked=locked, notes=notes)
        to_close.push(stack.pop_all())
    return source


def _read_by_gpu(store: RecordStore, context: SourceContext) -> KnowsPlaces | None:
    """Return the store if a GPU can copy its records as they are stored."""
    if context.device.type != "cuda" or context.num_workers or context.verify == "always":
        return None
    if cut_fields(store.manifest, context.transform):
        return None
    return lockable(store)


def _opened(path: str, open_file: Callable[[str], RecordStore]) -> RecordStore:
    if os.path.isdir(path):
        return ShardedStore(path, open_file)
    return open_file(path)


def _resident(store: RecordStore, context: SourceContext) -> RecordStore:
    if context.num_workers:
        where = f"workers.num = {context.num_workers}, data.stage = device"
        what = "needs no workers: a batch is one gather on the device"
        raise ConfigError(171, where, what, "leave workers.num out")
    transform = context.transform
    if transform.size is not None or transform.num_draws or transform.function is not None:
        what = "a transform works on the host, the data is on the device"
        fix = "set transform=none and choose an augment, or data.stage=ram"
        raise ConfigError(171, "data.stage = device", what, fix)
    return ResidentStore(store, context.device)
