"""Classes of validation data, numbered as the training data numbers them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch, mapped
from framework.contracts.data import (
    FindsRecords,
    MicroBatch,
    MicroBatches,
    NamesRecords,
    ReadsOn,
    Source,
    reading_on,
)
from framework.contracts.records import LABEL, Manifest, notes_of
from framework.errors import ConfigError, DataError, listed
from framework.order.batches import Order
from framework.order.select import names_of

NO_RECORD = -1  # the number of a class that training lacks and validation has no record of


def agree_on_classes(train: Manifest, val: Manifest, where: str = "data.val") -> list[int] | None:
    """Return the training data's number of each validation class, or None if labels already agree.

    Classes are matched by name. A store that names no classes is taken as it is, and so are
    stores whose labels are plain numbers: class "7" is label 7 in both. DataError D190, which
    names ``where``, if validation has records of a class that training lacks.
    """
    names = list(val.classes)
    known = {name: number for number, name in enumerate(train.classes)}
    label = val.fields.get(LABEL)
    if names == list(known) or not names or not known or label is None:
        return None
    if np.dtype(label.dtype).kind not in "biu":
        return None
    if is_numbered(names) and is_numbered(train.classes):
        return None
    counts = list(val.class_counts) or [1] * len(names)
    present = [name for name, count in zip(names, counts, strict=True) if count]
    if missing := [name for name in present if name not in known]:
        count = f"{len(missing)} classes ({listed(missing)})"
        if len(missing) == 1:
            count = f"the class {missing[0]}"
        what = (
            f"validation ({val.source}) has {count} that training ({train.source}) lacks; "
            f"training's classes: {listed(train.classes)}; validation's: {listed(names)}"
        )
        fix = "give both the same folders, or pack both with the same input.classes=[...]"
        raise DataError(190, where, what, fix)
    numbers = [known.get(name, NO_RECORD) for name in names]
    agree = all(new in (old, NO_RECORD) for old, new in enumerate(numbers))
    return None if agree else numbers


def is_numbered(classes: Sequence[str]) -> bool:
    """Return whether the names of the classes are their numbers, as with plain integer labels."""
    return all(name == str(number) for number, name in enumerate(classes))


def with_agreed_classes(
    train: Source, val: Source, select: str | None = None, where: str = "data.val"
) -> Source:
    """Return ``val``, which messages call ``where``, with labels numbered as in ``train``.

    Raises:
        DataError: D190 if ``val`` has a class that ``train`` lacks.
        ConfigError: C204 if ``select`` names labels, whose numbers differ.
    """
    numbers = agree_on_classes(train.manifest, val.manifest, where)
    if numbers is None:
        return val
    if select is not None and "label" in names_of(select):
        what = f"names labels, which data.train and {where} number otherwise"
        fix = "pack both with the same input.classes"
        raise ConfigError(204, f"select = {select[:200]}", what, fix)
    return MappedSource(val, numbers, train.manifest.classes, where)


@final
class MappedSource:
    """A Source whose labels are renumbered. Labels that are no class stay.

    Args:
        source: Gives the batches.
        numbers: The new number of each of its classes.
        classes: The names of these numbers.
        where: The key that names it.
    """

    def __init__(
        self,
        source: Source,
        numbers: Sequence[int],
        classes: Sequence[str],
        where: str = "data.val",
    ) -> None:
        self.source = source
        self.where = where
        self.numbers = list(numbers)
        self.classes = list(classes)

    @property
    def order(self) -> Order:
        return self.source.order

    @property
    def graph_refusal(self) -> str | None:
        return self.source.graph_refusal

    @property
    def manifest(self) -> Manifest:
        manifest = self.source.manifest
        if not manifest.class_counts:
            return replace(manifest, classes=self.classes)
        counts = [0] * len(self.classes)
        for number, count in zip(self.numbers, manifest.class_counts, strict=False):
            if number != NO_RECORD:
                counts[number] = count
        return replace(manifest, classes=self.classes, class_counts=counts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which labels change, and which classes have no record."""
        names = self.source.manifest.classes
        moved = [
            f"{name} {old} -> {new}"
            for old, (name, new) in enumerate(zip(names, self.numbers, strict=True))
            if new not in (old, NO_RECORD)
        ]
        note = f"{self.where} numbers its classes otherwise; its labels are mapped by name: "
        note += listed(moved)
        if absent := [name for name in self.classes if name not in set(names)]:
            note += f"; without a validation record: {listed(absent)}"
        return note, *notes_of(self.source)

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        return self._of(self.source.batches(epoch, start))

    @property
    def reads_on(self) -> bool:
        return reading_on(self.source) is not None

    @property
    def starts_processes(self) -> bool:
        assert isinstance(self.source, ReadsOn)
        return self.source.starts_processes

    def check(self) -> None:
        assert isinstance(self.source, ReadsOn)
        self.source.check()

    def stream(self, epoch: int, start: int, steps: int) -> MicroBatches:
        assert isinstance(self.source, ReadsOn)
        return self._of(self.source.stream(epoch, start, steps))

    def _of(self, batches: MicroBatches) -> MicroBatches:
        with closing(batches):
            for batch, weight, last in batches:
                yield MicroBatch(self._mapped(batch), weight, last)

    def sample(self, count: int) -> Batch:
        return self._mapped(self.source.sample(count))

    def records(self, indices: Tensor) -> Batch:
        assert isinstance(self.source, FindsRecords)
        return self._mapped(self.source.records(indices))

    def key(self, index: int) -> str:
        return self.source.key(index) if isinstance(self.source, NamesRecords) else ""

    def stages(self) -> dict[str, float]:
        return self.source.stages()

    def close(self) -> None:
        self.source.close()

    def _mapped(self, batch: Batch) -> Batch:
        labels: Any = batch[LABEL]
        if isinstance(labels, Tensor) and labels.is_nested:
            values: Any = labels
            new = self._renumbered(values.values())
            return {**batch, LABEL: torch.nested.nested_tensor_from_jagged(new, values.offsets())}
        return {**batch, LABEL: mapped(labels, self._renumbered)}

    def _renumbered(self, labels: Tensor) -> Tensor:
        """Return the new labels, as int64 if the new numbers do not fit the old type."""
        table = torch.tensor(self.numbers, device=labels.device)
        old = labels.long()
        is_class = (old >= 0) & (old < len(table))
        new = torch.where(is_class, table[old.clamp(0, len(table) - 1)], old)
        if labels.dtype != torch.bool and max(self.numbers) <= torch.iinfo(labels.dtype).max:
            new = new.to(labels.dtype)
        return new
