"""Items are taken apart into arrays and made again, equal in every byte and type."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from framework.commands.watch.item_layout import LayoutError, layout_and_values, layout_of


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


ITEMS = [
    (torch.rand(3, 4, 4), 3),
    {"a": np.arange(3, dtype=np.int16), "b": [1.5, True], "c": {"d": np.float32(2)}},
    Pair(torch.zeros(2, dtype=torch.bfloat16), 7),
    torch.tensor(5),
    [np.ones((2, 2), bool), np.uint8(3)],
]


def types(item):
    if isinstance(item, dict):
        return {key: types(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return type(item), [types(value) for value in item]
    return type(item), getattr(item, "dtype", None)


@pytest.mark.parametrize("item", ITEMS, ids=range(len(ITEMS)))
def test_an_item_is_made_again(item):
    layout = layout_of(item)
    rows = [torch.from_numpy(np.array(array)) for array in layout.arrays(item)]
    made = layout.item(rows)
    assert types(made) == types(item)
    again = layout_and_values(made)[1]
    for before, after in zip(layout_and_values(item)[1], again, strict=True):
        assert np.array_equal(torch.as_tensor(before).float(), torch.as_tensor(after).float())


def test_fields_are_named_by_keys_and_the_usual_pair():
    assert list(layout_of(ITEMS[0]).fields) == ["image", "label"]
    assert list(layout_of(ITEMS[1]).fields) == ["a", "b.field0", "b.field1", "c.d"]
    assert layout_of(ITEMS[0]).item_bytes == 4 * 48 + 8


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (("text", 1), "field0 is a str"),
        ((torch.zeros(1, requires_grad=True),), "cannot be stored"),
        ({"a": None}, "field a is a NoneType"),
    ],
)
def test_what_cannot_be_stored_is_named(item, words):
    with pytest.raises(LayoutError, match=words):
        layout_of(item)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ((torch.zeros(2), 1), r"field0 has the shape \[2\], but \[3\]"),
        ((torch.zeros(3).double(), 1), "field0 is a tensor of float64"),
        ((torch.zeros(3),), "different fields"),
    ],
)
def test_a_difference_is_named(item, words):
    with pytest.raises(LayoutError, match=words):
        layout_of((torch.zeros(3), 1)).arrays(item)
