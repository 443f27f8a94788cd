"""Random Datasets are refused, with the field that differs."""

import random
import threading

import numpy as np
import pytest
import torch

from framework.commands.watch.item_check import checked_indices, checked_layout, copied
from framework.commands.watch.item_layout import LayoutError

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
    layout, items = checked_layout(Made(lambda index: (torch.full((2,), index), index)))
    assert torch.equal(before, torch.get_rng_state())
    assert len(items) == len(checked_indices(20)) == 16
    assert layout.item_bytes == 24


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda i: {"a": torch.zeros(1), "b": torch.rand(3)}, "twice gives another b"),
        (lambda i: {"a": random.random(), "b": 1}, "twice gives another a"),
        (lambda i: (OWN.random(), 1), "twice gives another field0"),
        (rarely, "draw random numbers"),
        (lambda i: torch.zeros(i + 1), r"item 1: field value has the shape \[2\]"),
    ],
)
def test_what_changes_is_refused(make, words):
    with pytest.raises(LayoutError, match=words):
        checked_layout(Made(make))


def test_a_dataset_that_cannot_be_copied_is_refused():
    with pytest.raises(LayoutError, match="cannot be copied"):
        copied(Made(threading.Lock()))
