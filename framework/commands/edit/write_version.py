"""Write the layer of a new version, which then exists as a whole or not at all."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from framework.commands.edit.changes import CHANGES, StoreChange
from framework.contracts.records import Manifest
from framework.errors import ResourceError
from framework.pack.engine.jobs import class_counts
from framework.pack.engine.packing import PackProgress
from framework.store.channel_statistics import StatisticsSampler
from framework.store.checksum import as_stored, content_crcs, digest_of
from framework.store.hdf5_store import HDF5Writer
from framework.store.layered import Edit, layer_manifest
from framework.store.open_store import open_store
from framework.store.versions import layer_path, num_versions, own_path
from framework.system.durable import remove_leftovers, tidied, uninterrupted
from framework.system.lock import locked

Tell = Callable[[PackProgress], object]


def edit_store(path: str, kind: str, value: str, tell: Tell) -> Edit:
    """Make a new version of the store at ``path``, and return how it came about.

    Args:
        path: The store, without a version.
        kind: A key of ``CHANGES``.
        value: What to append, drop, relabel or add.
        tell: Called with the progress.

    Raises:
        ConfigError: C251 for an expression that selects no record, or all.
        DataError: D253 or D254 for a table or keys that do not fit; others for a bad record.
        ResourceError: R250 if the store is packed or edited by another process.
    """
    lock = Path(f"{own_path(path)}.lock")

    def busy(holder: str) -> ResourceError:
        fix = "wait until it ends, or stop it"
        return ResourceError(250, str(lock), f"{holder} is packing or editing the store", fix)

    with locked(lock, busy):
        number = num_versions(path) + 1
        layer = Path(layer_path(path, number))
        remove_leftovers(layer)
        tidied(layer.parent)
        with closing(open_store(path)) as store:
            before = store.manifest
            change = CHANGES[kind](path, store, value)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            edit = Edit(number, kind, f"{kind}={value}", when, before.digest, before)
            return _write(change, edit, layer, tell)


def _write(change: StoreChange, edit: Edit, layer: Path, tell: Tell) -> Edit:
    """Write the layer, while the records of the version pass by."""
    manifest = replace(change.manifest, class_counts=(), shards=(), statistics={}, digest="")
    sampler = StatisticsSampler(manifest.fields, manifest.num_records)
    counts = np.zeros(len(manifest.classes), np.int64)
    crcs: list[np.ndarray] = []
    num_done = 0
    with uninterrupted():
        writer = HDF5Writer(str(layer), fields=change.fields, num_records=change.num_stored)
    try:
        for chunk, stored in change.parts():
            records = {
                name: as_stored(chunk.records[name], field)
                for name, field in manifest.fields.items()
            }
            crcs.append(content_crcs(records, manifest.fields))
            num_done += len(chunk.keys)
            sampler.pass_by(records, len(chunk.keys))
            counts += class_counts(chunk, len(counts))
            if stored is not None:
                with uninterrupted():
                    writer.write(stored.records, stored.keys)
            tell(PackProgress("editing", num_done, manifest.num_records, num_done, 0, 0))
        version = _described(manifest, crcs, counts, sampler)
        edit = replace(edit, manifest=version)
        with uninterrupted():
            writer.close(layer_manifest(change.fields, change.num_stored, edit))
    finally:
        writer.abort()
    return edit


def _described(
    manifest: Manifest, crcs: Sequence[np.ndarray], counts: np.ndarray, sampler: StatisticsSampler
) -> Manifest:
    """Return the manifest with what the records decide."""
    return replace(
        manifest,
        class_counts=counts.tolist(),
        statistics=sampler.result(),
        digest=digest_of(crcs),
    )
