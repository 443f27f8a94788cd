"""Whether a Dataset always returns the same items, so that packing them once would do."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.data.items import HOST, Named, is_number
from framework.order.batches import spread
from framework.system.rng import generator_mark, kept_generators

NUM_CHECKED = 16


class ItemsDifferError(Exception):
    """Items that packing could not replace. The message names the item and the field."""


def copied(dataset: Any) -> Any:
    """Return a copy of a Dataset, which may open files without the original noticing.

    A handle that was opened here would be inherited by forked workers, and break there.

    Raises:
        ItemsDifferError: It cannot be copied.
    """
    try:
        return deepcopy(dataset)
    except Exception as error:
        what = f"the Dataset cannot be copied ({type(error).__name__}: {error})"
        raise ItemsDifferError(" ".join(what.split())[:200]) from error


def repeated_item_bytes(dataset: Any) -> int:
    """Read some items twice, and return the bytes of one.

    Raises:
        ItemsDifferError: The items are random, differ in their shapes, or hold more than arrays
            and numbers.
    """
    num_items = len(dataset)
    with kept_generators(HOST):
        before = generator_mark()
        first = _arrays(dataset, 0)
        for index in spread(num_items, min(NUM_CHECKED, num_items)).tolist():
            item, again = _arrays(dataset, index), _arrays(dataset, index)
            _check_same_layout(first, item, index)
            for name, array in item.items():
                if array.tobytes() != again[name].tobytes():
                    what = f"item {index}: reading it twice gives another {name}"
                    raise ItemsDifferError(what)
        draws = generator_mark() != before
    if draws:
        what = "the items draw random numbers, although reading them twice gave the same bytes"
        raise ItemsDifferError(what)
    return sum(array.nbytes for array in first.values())


def _arrays(dataset: Any, index: int) -> dict[str, np.ndarray]:
    """Return copies of the arrays of an item by name."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in _fields(dataset[index], ()):
        if isinstance(value, Tensor):
            value = value.detach().cpu()  # noqa: PLW2901
            # NumPy has no bfloat16.
            array = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
            array = array.numpy()
        else:
            array = np.asarray(value)
        if not is_number(array.dtype):
            what = f"item {index}: field {name} is a {type(value).__name__}"
            raise ItemsDifferError(f"{what}, and only numbers are packed")
        arrays[name] = np.array(array)
    return arrays


def _fields(item: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, tuples and lists with their dotted names."""
    if isinstance(item, dict):
        parts = list(item.items())
    elif isinstance(item, tuple) and isinstance(item, Named):
        named: Any = item
        parts = list(named._asdict().items())
    elif isinstance(item, tuple | list):
        parts = [(f"field{number}", value) for number, value in enumerate(item)]
    else:
        yield ".".join(path) or "value", item
        return
    for name, value in parts:
        yield from _fields(value, (*path, str(name)))


def _check_same_layout(
    first: dict[str, np.ndarray], item: dict[str, np.ndarray], index: int
) -> None:
    """Check that an item has the fields, shapes and dtypes of item 0."""
    if first.keys() != item.keys():
        raise ItemsDifferError(f"item {index}: has other fields than item 0")
    for name, array in item.items():
        if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
            is_now = f"{array.dtype} {list(array.shape)}"
            was = f"{first[name].dtype} {list(first[name].shape)}"
            raise ItemsDifferError(f"item {index}: field {name} is {is_now}, but {was} in item 0")
