"""How the items of a Dataset are made of arrays, so that they can be stored and made again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field
from framework.data.items import Named, is_number

ALONE = "value"  # the name of an item that is one array
# Dtypes that NumPy lacks are stored as whole numbers of the same size.
STORED_AS = {torch.bfloat16: torch.int16}


class LayoutError(Exception):
    """An item that cannot be stored. The message names the field."""


@dataclass(frozen=True)
class Leaf:
    """A value of an item.

    Attributes:
        name: Its name in the store.
        kind: ``tensor``, ``array``, ``scalar`` (of NumPy), or a Python number's type.
        dtype: NumPy's name of the stored type.
        shape: Of one item.
        own_dtype: Torch's dtype of a tensor, if NumPy lacks it.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    own_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class ItemLayout:
    """The form of every item of a Dataset: nested dicts, tuples and lists of ``leaves``."""

    form: Any
    leaves: tuple[Leaf, ...]

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of a store of such items."""
        return {leaf.name: Field(leaf.dtype, leaf.shape) for leaf in self.leaves}

    @property
    def item_bytes(self) -> int:
        return sum(
            np.dtype(leaf.dtype).itemsize * int(np.prod(leaf.shape, dtype=np.int64))
            for leaf in self.leaves
        )

    @property
    def words(self) -> str:
        """A description that differs if the layout does."""
        return f"{self.form} {self.leaves}"

    def arrays(self, item: Any) -> list[np.ndarray]:
        """Return the arrays of an item. LayoutError if it has another layout."""
        other, values = layout_and_values(item)
        if other != self:
            raise LayoutError(_difference(self, other))
        return [_stored(value) for value in values]

    def item(self, rows: Sequence[Any]) -> Any:
        """Return the item whose arrays are ``rows``: tensors that nobody else uses."""
        values = iter(_value(leaf, row) for leaf, row in zip(self.leaves, rows, strict=True))
        return _made(self.form, values)


def layout_of(item: Any) -> ItemLayout:
    """Return the layout of an item. LayoutError if it holds anything but arrays and numbers."""
    return layout_and_values(item)[0]


def layout_and_values(item: Any) -> tuple[ItemLayout, list[Any]]:
    """Return the layout of an item and its values in the order of the leaves."""
    leaves: list[Leaf] = []
    values: list[Any] = []
    form = _form(item, (), leaves, values)
    return ItemLayout(form, tuple(leaves)), values


def _form(item: Any, path: tuple[str, ...], leaves: list[Leaf], values: list[Any]) -> Any:
    """Return an item's form: its types and keys, with a number in place of each leaf."""
    if type(item) is dict:
        return dict, tuple(
            (key, _form(value, (*path, str(key)), leaves, values)) for key, value in item.items()
        )
    names = _part_names(item)
    if names is not None:
        return type(item), tuple(
            _form(value, (*path, part), leaves, values)
            for part, value in zip(names, item, strict=True)
        )
    leaves.append(_leaf(".".join(path) or ALONE, item))
    values.append(item)
    return len(leaves) - 1


def _part_names(item: Any) -> list[str] | None:
    """Return names for the values of a tuple or list; None for a leaf."""
    if isinstance(item, tuple) and isinstance(item, Named):
        named: Any = item
        return list(named._asdict())
    if type(item) in (tuple, list):
        return _names(item)
    return None


def _names(values: Sequence[Any]) -> list[str]:
    """Return names for the values of a tuple: ``image`` and ``label`` for those of a usual pair."""
    names = [f"field{number}" for number in range(len(values))]
    if len(values) > 1 and np.ndim(values[0]) == 3 and np.ndim(values[1]) == 0:
        names[:2] = ["image", "label"]
    return names


def _leaf(name: str, value: Any) -> Leaf:
    if type(value) is Tensor:
        if value.requires_grad or value.device.type != "cpu" or value.layout != torch.strided:
            raise LayoutError(f"field {name} is a tensor that cannot be stored")
        array = _stored(value)
        own = value.dtype if value.dtype in STORED_AS else None
        return Leaf(name, "tensor", array.dtype.name, array.shape, own)
    if isinstance(value, np.ndarray | np.generic) and is_number(value.dtype):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return Leaf(name, kind, value.dtype.name, value.shape)
    if type(value) in (bool, int, float):
        return Leaf(name, type(value).__name__, _stored(value).dtype.name, ())
    raise LayoutError(f"field {name} is a {type(value).__name__}, and only numbers are stored")


def _stored(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.view(STORED_AS.get(value.dtype, value.dtype)).numpy()
    return np.asarray(value)


def _value(leaf: Leaf, row: Tensor) -> Any:
    if leaf.kind == "tensor":
        return row if leaf.own_dtype is None else row.view(leaf.own_dtype)
    if leaf.kind == "array":
        return row.numpy()
    if leaf.kind == "scalar":
        return row.numpy()[()]
    return row.item()


def _made(form: Any, values: Iterator[Any]) -> Any:
    """Return an item of a form, whose leaves are the next ``values``."""
    if isinstance(form, int):
        return next(values)
    kind, parts = form
    if kind is dict:
        return {key: _made(part, values) for key, part in parts}
    made = [_made(part, values) for part in parts]
    return kind(*made) if issubclass(kind, Named) else kind(made)


def _difference(layout: ItemLayout, other: ItemLayout) -> str:
    """Say in which field two layouts differ."""
    for leaf, another in zip(layout.leaves, other.leaves, strict=False):
        if leaf.shape != another.shape:
            shapes = f"the shape {list(another.shape)}, but {list(leaf.shape)}"
            return f"field {leaf.name} has {shapes} in item 0"
        if leaf != another:
            is_now = f"{another.kind} of {another.dtype}"
            return f"field {leaf.name} is a {is_now}, but {leaf.kind} of {leaf.dtype} in item 0"
    return "the items have different fields"
