"""Classes of validation data, numbered as the training data numbers them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch, mapped
from framework.contracts.data import Source
from framework.contracts.records import LABEL, Manifest, is_numbered
from framework.errors import ConfigError, DataError, listed
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


def with_agreed_classes(
    train: Source, val: Source, select: str | None = None, where: str = "data.val"
) -> Source:
    """Return ``val``, which messages call ``where``, with labels numbered as in ``train``.

    DataError D190 if ``val`` has a class that ``train`` lacks, ConfigError C204 if ``select`` names
    labels, whose numbers differ.
    """
    numbers = agree_on_classes(train.manifest, val.manifest, where)
    if numbers is not None and select is not None and "label" in names_of(select):
        what = f"names labels, which data.train and {where} number otherwise"
        fix = "pack both with the same input.classes"
        raise ConfigError(204, f"select = {select[:200]}", what, fix)
    return renumbered(val, numbers, train.manifest.classes, where)


def renumbered(
    source: Source, numbers: Sequence[int] | None, classes: Sequence[str], where: str = "data.val"
) -> Source:
    """Return the source, with the new number of each of its classes, which ``classes`` names."""
    if numbers is not None:
        source.renumber(LabelMap(source.manifest.classes, numbers, classes, where))
    return source


@final
class LabelMap:
    """Renumbers the labels of batches. Labels that are no class stay.

    The classes of a source, ``names``, get new ``numbers``, which ``classes`` names. The ``note``
    about it begins with ``where``.
    """

    def __init__(
        self, names: Sequence[str], numbers: Sequence[int], classes: Sequence[str], where: str
    ) -> None:
        self._numbers = list(numbers)
        self._classes = list(classes)
        pairs = enumerate(zip(names, numbers, strict=True))
        moved = [
            f"{name} {old} -> {new}" for old, (name, new) in pairs if new not in (old, NO_RECORD)
        ]
        self.note = f"{where} numbers its classes otherwise; its labels are mapped by name: "
        self.note += listed(moved)
        if absent := [name for name in classes if name not in set(names)]:
            self.note += f"; without a validation record: {listed(absent)}"

    def manifest(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the new classes."""
        counts = [0] * len(self._classes) if manifest.class_counts else []
        for number, count in zip(self._numbers, manifest.class_counts, strict=False):
            if number != NO_RECORD:
                counts[number] = count
        return replace(manifest, classes=self._classes, class_counts=counts)

    def __call__(self, batch: Batch) -> Batch:
        labels: Any = batch[LABEL]
        if isinstance(labels, Tensor) and labels.is_nested:
            values: Any = labels
            new = self._renumbered(values.values())
            return {**batch, LABEL: torch.nested.nested_tensor_from_jagged(new, values.offsets())}
        return {**batch, LABEL: mapped(labels, self._renumbered)}

    def _renumbered(self, labels: Tensor) -> Tensor:
        """Return the new labels, as int64 if the new numbers do not fit the old type."""
        table = torch.tensor(self._numbers, device=labels.device)
        old = labels.long()
        is_class = (old >= 0) & (old < len(table))
        new = torch.where(is_class, table[old.clamp(0, len(table) - 1)], old)
        if labels.dtype != torch.bool and max(self._numbers) <= torch.iinfo(labels.dtype).max:
            new = new.to(labels.dtype)
        return new
