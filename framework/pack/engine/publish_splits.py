"""The last step of a packing with splits: the records of all jobs become a store per split.

A split is known only after all records are: classes and groups are counted first. So the items are
read once, into the jobs' files, and each split is joined from all of these.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from framework.contracts.records import LABEL, Manifest, Ragged, RecordStore
from framework.pack.engine.journal import JobResult, Journal
from framework.pack.engine.packing import PackedSplit
from framework.pack.engine.publish import Joining, keys_of, size_of
from framework.pack.split import STRATIFIED, SplitRule, hashed
from framework.store.columns import column_of
from framework.store.open_store import open_store
from framework.system.durable import move


def join_tasks(
    rule: SplitRule, manifest: Manifest, results: Sequence[JobResult], journal: Journal
) -> dict[str, Joining]:
    """Return the task that makes the store of each split, by its name.

    Args:
        rule: Divides the records.
        manifest: Of all records.
        results: All jobs.
        journal: Has their files.

    Raises:
        ConfigError: C244 if a split has no record.
    """
    splits = _assigned(rule, results, journal)
    ends = np.cumsum([job.num_records for job in results])[:-1]
    tasks: dict[str, Joining] = {}
    for number, name in enumerate(rule.shares):
        is_in = splits == number
        words = f"{name} of {rule.words}"
        if rule.by is not None:
            words += f" by {rule.by}"
        own = replace(
            manifest,
            num_records=int(is_in.sum()),
            options={**manifest.options, "split": words},
            first_key=None,  # the keys of a split have gaps
        )
        target = journal.folder / f"joined-{name}{journal.suffix}"
        tasks[name] = Joining(own, results, target, np.split(is_in, ends))
    return tasks


def _assigned(rule: SplitRule, results: Sequence[JobResult], journal: Journal) -> np.ndarray:
    """Return the number of each record's split, in the order of the jobs. ConfigError C244."""
    hashes: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for job in results:
        if job.num_records:
            with closing(open_store(str(journal.file(job.number)))) as store:
                hashes.append(hashed(_texts(rule, store)))
                if rule.by == STRATIFIED:
                    labels.append(column_of(store, LABEL).numpy())
    return rule.assign(np.concatenate(hashes), np.concatenate(labels) if labels else None)


def _texts(rule: SplitRule, store: RecordStore) -> list[bytes]:
    """Return what is hashed of each record: its key, a part of it, or the value of a field."""
    if rule.field is None:
        keys = keys_of(store, torch.arange(store.manifest.num_records))
        texts = rule.texts(keys, store.name(0))
        return [text.encode(errors="surrogateescape") for text in texts]
    values = column_of(store, rule.field)
    if isinstance(values, Ragged):
        return [text.tobytes() for text in values.arrays()]
    return [str(number).encode() for number in values.tolist()]


def put_splits(tasks: dict[str, Joining], paths: dict[str, str]) -> list[PackedSplit]:
    """Move the joined file of each split to its path.

    After a kill in between, the same command joins all of them again: the jobs' files stay.
    """
    for name, task in tasks.items():
        move(task.target, Path(paths[name]))
    return [
        PackedSplit(name, paths[name], task.manifest.num_records, size_of(Path(paths[name])))
        for name, task in tasks.items()
    ]
