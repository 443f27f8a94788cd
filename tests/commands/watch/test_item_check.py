"""Random Datasets are refused, with the field that differs."""

import random
import threading

import numpy as np
import pytest
import torch

from framework.commands.watch.item_check import ItemsDifferError, copied, repeated_item_bytes

OWN = np.random.default_rng(0)


class Made:
    """A Dataset from a function."""

    def __init__(self, make, count=20):
        self.make = make
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def rarely(index):
    return {"x": torch.ones(2) if random.random() > -1 else 0, "y": index}


def test_a_fixed_dataset_passes_and_draws_nothing():
    before = torch.get_rng_state()
    assert repeated_item_bytes(Made(lambda index: (torch.full((2,), index), index))) == 24
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda i: {"a": 1, "b": torch.rand(3)}, "twice gives another b", id="torch"),
        pytest.param(lambda i: (OWN.random(), 1), "twice gives another field0", id="own generator"),
        pytest.param(rarely, "draw random numbers", id="unused draw"),
        pytest.param(
            lambda i: torch.zeros(i + 1), r"field value is float32 \[2\], but", id="shape"
        ),
        pytest.param(lambda i: {"a": None}, "field a is a NoneType", id="no number"),
        pytest.param(lambda i: ("text", 1), "field0 is a str", id="text"),
    ],
)
def test_what_changes_is_refused(make, words):
    with pytest.raises(ItemsDifferError, match=words):
        repeated_item_bytes(Made(make))


def test_a_dataset_that_cannot_be_copied_is_refused():
    with pytest.raises(ItemsDifferError, match="cannot be copied"):
        copied(Made(threading.Lock()))
