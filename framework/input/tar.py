"""WebDataset shards: .tar files whose members with one name, up to its first dot, are one record.

Members are located once and then read in place. Nothing is ever extracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from framework.contracts.records import LABEL, Manifest
from framework.input.rows import Row, RowInput
from framework.store.tar_store import TarStore


@final
@dataclass(eq=False)
class TarInput(RowInput):
    """The records of ``TarStore``. ``conf/input/tar.yaml`` describes the options.

    The index that ``data=tar`` wrote is used, but packing writes none.
    """

    path: str
    fields: Mapping[str, str] | None
    classes: Sequence[str] | None
    label_pattern: str | None

    @cached_property
    def records(self) -> TarStore:
        options = (self.fields, self.classes, self.label_pattern)
        return TarStore(self.path, *options, kinds=self.kinds, keep=False, group="input")

    @cached_property
    def all_kinds(self) -> Mapping[str, str]:
        return self.records.kinds

    def described(self) -> Manifest:
        records = self.records
        return Manifest(len(records), {}, records.class_names, source=records.source)

    def row(self, index: int) -> Row:
        records = self.records
        labels = records.labels
        row: Row = {
            field: records.value(field, index)
            for field in records.sources
            if field != LABEL or labels is None
        }
        if labels is not None:
            row[LABEL] = np.asarray(labels[0][index])
        return row

    def key(self, index: int) -> str:
        return self.records.key(index)

    def name(self, index: int) -> str:
        return self.records.name(index)

    def item_files(self, index: int) -> Sequence[str]:
        listed = self.records.listed
        return (listed.shards[listed.shard_numbers[index]],)
