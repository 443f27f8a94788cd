"""Whether a Dataset always returns the same items."""

from copy import deepcopy
from typing import Any

import numpy as np

from framework.commands.watch.item_layout import ItemLayout, LayoutError, layout_of
from framework.data.item_reader import HOST
from framework.order.batches import spread
from framework.system.rng import generator_mark, kept_generators

NUM_CHECKED = 16


def copied(dataset: Any) -> Any:
    """Return a copy of a Dataset, which may open files without the original noticing.

    A handle that was opened here would be inherited by forked workers, and break there.

    Raises:
        LayoutError: It cannot be copied.
    """
    try:
        return deepcopy(dataset)
    except Exception as error:
        what = f"the Dataset cannot be copied ({type(error).__name__}: {error})"
        raise LayoutError(" ".join(what.split())[:200]) from error


def checked_indices(num_items: int) -> list[int]:
    """Return the numbers of the items that are checked, from the first to the last one."""
    return spread(num_items, min(NUM_CHECKED, num_items)).tolist()


def checked_layout(dataset: Any) -> tuple[ItemLayout, list[list[np.ndarray]]]:
    """Read some items twice. Return their layout, and the arrays of each.

    Raises:
        LayoutError: The items are random, differ in their layout, or cannot be stored.
    """
    checked: list[list[np.ndarray]] = []
    with kept_generators(HOST):
        layout = layout_of(dataset[0])
        draws = False
        for index in checked_indices(len(dataset)):
            mark = generator_mark()
            first = _arrays(layout, dataset, index)
            draws |= generator_mark() != mark
            second = _arrays(layout, dataset, index)
            refuse_differing(layout, first, second, f"item {index}: reading it twice gives another")
            checked.append(first)
    if draws:
        what = "the items draw random numbers, although reading them twice gave the same bytes"
        raise LayoutError(what)
    return layout, checked


def read_again(dataset: Any, layout: ItemLayout, numbers: list[int]) -> list[list[np.ndarray]]:
    """Return the arrays of some items, as a copy of the Dataset makes them now.

    Raises:
        LayoutError: It cannot be copied, or an item has another layout.
    """
    copy = copied(dataset)
    with kept_generators(HOST):
        return [_arrays(layout, copy, number) for number in numbers]


def refuse_differing(
    layout: ItemLayout, first: list[np.ndarray], second: list[np.ndarray], what: str
) -> None:
    """Raise LayoutError, which names the field, if two items differ in a byte."""
    for leaf, before, after in zip(layout.leaves, first, second, strict=True):
        if before.tobytes() != after.tobytes():
            raise LayoutError(f"{what} {leaf.name}")


def _arrays(layout: ItemLayout, dataset: Any, index: int) -> list[np.ndarray]:
    try:
        return [np.array(array) for array in layout.arrays(dataset[index])]
    except LayoutError as error:
        raise LayoutError(f"item {index}: {error}") from error
