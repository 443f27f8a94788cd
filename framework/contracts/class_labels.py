"""What the number of a class is: one rule for packing, orders, objectives and checks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.errors import DataError, words_of

IGNORE_INDEX = -100  # of a label that does not count, as in torch
ONE_PER_RECORD = ((), (1,))  # shapes of a record's number
REFUSED = re.compile(r"\b(?:Target|index) (-?\d+) is out of bounds")  # torch, for a label


class LabelRange(NamedTuple):
    """The labels that an objective takes."""

    field: str
    num_classes: int  # they are from 0 to ``num_classes`` - 1
    ignored: tuple[int, ...] = ()  # further numbers, of labels that do not count
    option: str = ""  # the option that ignores another number, or ""


@runtime_checkable
class KnowsLabelRange(Protocol):
    """A capability of an objective: it says which labels it takes."""

    label_range: LabelRange | None  # known after the first call; None: any, or it is not known


def class_labels(target: Tensor, num_dims: int) -> Tensor:
    """Return the numbers of classes as int64, without an axis of size 1 behind the records.

    ``target`` holds integers or bool: [B] or [B, 1] for a class per record (``num_dims`` 1),
    [B, H, W] or [B, 1, H, W] for one per pixel (3). Floats, which are shares of classes, stay.
    """
    if target.dim() == num_dims + 1 and target.shape[1] == 1:
        target = target.squeeze(1)
    return target if target.is_floating_point() else target.long()


@final
@dataclass(eq=False)
class LabelCheck:
    """Refuses labels that number no class, on the host, where no device must be waited for."""

    where: str  # the key that names the data, and its value
    key: Callable[[int], str] = lambda _: ""  # returns the name of a record, or ""
    allowed: LabelRange | None = None  # None: nothing is checked

    def __call__(self, batch: Batch) -> None:
        """Check the labels of a batch if it is on the host. DataError D195."""
        if self.allowed is None:
            return
        labels = batch.get(self.allowed.field)
        if isinstance(labels, Tensor) and labels.device.type == "cpu" and not labels.is_nested:
            self.check(labels, batch["index"], self.allowed)

    def check(self, labels: Tensor, indices: Tensor, allowed: LabelRange) -> None:
        """Check labels [B, ...] of the records ``indices``, int64 [B]. DataError D195."""
        if labels.is_floating_point() or not labels.numel():
            return
        if labels.dtype not in (torch.uint8, torch.int64):  # torch compares no uint16
            labels = labels.long()
        low, high = labels.aminmax()
        if low >= 0 and high < allowed.num_classes:
            return
        labels = labels.reshape(len(labels), -1)
        wrong = (labels < 0) | (labels >= allowed.num_classes)
        for number in allowed.ignored:
            wrong &= labels != number
        if not wrong.any():
            return
        place = int(wrong.nonzero()[0, 0])
        index, value = int(indices[place]), int(labels[place][wrong[place]][0])
        where = f"{self.where}, record {index}"
        key = self.key(index)
        if key not in ("", str(index)):
            where += f" ({key})"
        what = f"has {value} as {allowed.field}, and classes are 0 to {allowed.num_classes - 1}"
        raise DataError(195, where, what, _fix(value, allowed.option))


def _fix(number: int, option: str) -> str:
    fix = "correct it, or give the model as many classes"
    return f"{fix}, or leave out such labels by {option}={number}" if option else fix


def raise_if_label(error: Exception, batch: Batch, where: str, option: str = "") -> None:
    """Raise DataError D195, which names the record of ``batch``, if torch has refused a label.

    ``option`` is the one that ignores a number, or "".
    """
    match = REFUSED.search(words_of(error))
    if match is None or "index" not in batch:
        return
    number, indices = int(match[1]), batch["index"]
    for name, values in tensors(batch).items():
        if name == "index" or values.is_floating_point() or len(values) != len(indices):
            continue
        has = (values.reshape(len(values), -1).long() == number).any(1)
        if has.any():
            what = f"has {number} as {name}, which numbers no class here ({words_of(error)})"
            where = f"{where}, record {int(indices[has][0])}"
            raise DataError(195, where, what, _fix(number, option)) from error


def is_class_number(kind: str, shape: Sequence[int | None]) -> bool:
    """Return whether arrays of this NumPy ``kind`` and shape of a record number classes."""
    return kind in "biu" and tuple(shape) in ONE_PER_RECORD
