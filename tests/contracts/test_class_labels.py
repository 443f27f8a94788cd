"""What numbers a class: any integer, [N, 1] as [N], and which record has a label that is none."""

import numpy as np
import pytest
import torch

from framework.contracts.class_labels import LabelCheck, LabelRange, class_labels, raise_if_label
from framework.errors import DataError

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def of(dtype, *shape):
    return torch.from_numpy(np.array([0, 1, 1, 0], dtype).reshape(4, *shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_of_any_type_are_classes(dtype):
    for shape in ((), (1,)):
        labels = class_labels(of(dtype, *shape), 1)
        assert labels.dtype == torch.int64
        assert labels.tolist() == [0, 1, 1, 0]


def test_only_an_axis_of_size_one_is_left_out():
    assert class_labels(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), 3).shape == (2, 3, 3)
    assert class_labels(torch.zeros(2, 1, dtype=torch.uint8), 2).shape == (2, 1)
    assert class_labels(torch.zeros(2, 5, dtype=torch.uint8), 1).shape == (2, 5)


def checked(labels, *ignored, num_classes=2, indices=None):
    check = LabelCheck("data.train = a.h5", lambda index: f"key{index}")
    check.allowed = LabelRange("label", num_classes, ignored, "objective.ignore_index")
    index = torch.arange(len(labels)) + 10 if indices is None else indices
    check({"index": index, "label": labels})


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_label_that_is_too_large_names_its_record(dtype):
    checked(of(dtype))
    with pytest.raises(DataError, match=r"D195.*a.h5, record 11 \(key11\): has 1 as label"):
        checked(of(dtype), num_classes=1)


def test_a_pixel_that_is_too_large_names_its_record():
    maps = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    maps[2, 0, 1, 1] = 7
    maps[0, 0, 0, 0] = 255
    checked(maps, 255, 7)
    with pytest.raises(DataError, match=r"record 12 .*has 7 .*objective.ignore_index=7"):
        checked(maps, 255)


def test_a_negative_label_is_refused_unless_it_is_ignored():
    labels = torch.tensor([0, -100, 1])
    checked(labels, -100)
    with pytest.raises(DataError, match=r"record 11 .*has -100 as label, and classes are 0 to 1"):
        checked(labels)


def test_shares_and_other_fields_are_not_checked():
    checked(torch.tensor([[3.0, -2.0]]))
    check = LabelCheck("data.train")
    check({"index": torch.arange(1), "label": torch.tensor([-5])})  # no range is known
    check.allowed = LabelRange("mask", 2)
    check({"index": torch.arange(1), "label": torch.tensor([-5])})


def test_a_label_that_torch_refuses_names_its_record():
    batch = {"index": torch.tensor([4, 7]), "x": torch.rand(2, 3), "y": torch.tensor([[0], [9]])}
    for target in (batch["y"][:, 0], torch.tensor([0, 5])):
        with pytest.raises(IndexError) as caught:
            torch.nn.functional.cross_entropy(batch["x"], target)
        if target[1] == 5:  # no field has it
            raise_if_label(caught.value, batch, "step 3")
            continue
        with pytest.raises(DataError, match=r"D195.*step 3, record 7: has 9 as y.*by o.ignore=9$"):
            raise_if_label(caught.value, batch, "step 3", "o.ignore")
