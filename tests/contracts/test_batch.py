from typing import NamedTuple

import pytest
import torch

from framework.contracts.batch import described, leaves, move, pin, taken, tensors
from framework.system.memory import empty, use
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA

CPU = torch.device("cpu")
META = torch.device("meta")
BATCH = {"index": torch.arange(3), "image": torch.ones(3, 1, 2, 2)}
BATCH |= {"name": ["a", "b", "c"], "origin": "here"}


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def nest():
    return {
        "parts": {"box": torch.ones(2, 4), "names": ["a", "b"]},
        "levels": [torch.zeros(2), torch.ones(2, 3)],
        "pair": Pair(torch.arange(2), torch.arange(4)),
        "empty": [],
    }


def test_moving_to_the_same_device_copies_nothing_into_a_dictionary_of_its_own():
    moved = move(BATCH, CPU)
    assert list(moved) == list(BATCH)
    assert all(moved[name] is BATCH[name] for name in BATCH)
    moved["new"] = moved.pop("image")
    assert list(BATCH) == ["index", "image", "name", "origin"]


def test_moving_takes_every_tensor_to_the_device_and_carries_other_values_along():
    moved = move(BATCH, META)
    assert [(name, value.device) for name, value in tensors(moved).items()] == [
        ("index", META),
        ("image", META),
    ]
    assert moved["image"].shape == (3, 1, 2, 2)
    assert moved["name"] is BATCH["name"]
    assert moved["origin"] == "here"


def test_tensors_inside_dicts_and_lists_are_moved_and_the_rest_is_not():
    moved = move(nest(), META)
    assert [leaf.device for leaf in leaves(moved)] == [META] * 5
    assert [leaf.shape for leaf in leaves(moved)] == [leaf.shape for leaf in leaves(nest())]
    assert type(moved["pair"]) is Pair
    assert moved["parts"]["names"] == ["a", "b"]
    assert moved["empty"] == []


def test_records_are_taken_from_tensors_and_lists():
    result = taken(BATCH, torch.tensor([2, 0]))
    assert result["index"].tolist() == [2, 0]
    assert (result["name"], result["origin"]) == (["c", "a"], "here")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (BATCH, "image (1, 2, 2), name list of 3, origin str"),
        (None, "a NoneType"),
        ({3: torch.ones(2)}, ""),
    ],
    ids=["a batch", "none", "a number as name"],
)
def test_anything_can_be_described(batch, words):
    assert described(batch) == words


def test_a_nested_tensor_is_moved_pinned_and_counted_by_its_parts():
    values, offsets = torch.arange(5.0), torch.tensor([0, 2, 5])
    batch = {"wave": torch.nested.nested_tensor_from_jagged(values, offsets)}
    assert [part.tolist() for part in leaves(batch)] == [values.tolist(), offsets.tolist()]
    with simulated(0):
        pinned = pin(batch)["wave"]
    deep = move({"deep": [batch["wave"]]}, CPU)["deep"][0]
    for same in (move(batch, CPU)["wave"], deep, pinned):
        assert [part.tolist() for part in same.unbind()] == [[0, 1], [2, 3, 4]]
    assert move(batch, META)["wave"].values().device == META


@pytest.fixture
def cuda():
    """Simulate a GPU, and make batches in page-locked memory."""
    with simulated(0):
        use(CUDA, pinned=True)
        yield


def made(count, **more):
    """Return a batch as a source makes it: the images in place, the labels elsewhere."""
    image = empty((count, 2, 3), torch.uint8)
    image[:] = torch.arange(count * 6).view(count, 2, 3)
    return {"index": torch.arange(count), "image": image, "label": torch.arange(count), **more}


def pinned_and_moved(batch):
    """Pin and move a batch, check that its tensors are the same, and return both."""
    pinned = pin(batch)
    moved = move(pinned, CUDA)
    assert list(moved) == list(batch)
    assert all(leaf.is_pinned() for leaf in leaves(pinned))
    pairs = zip(leaves(moved), leaves(batch), strict=True)
    assert all(result.cpu().equal(original) for result, original in pairs)
    return pinned, moved


def test_the_fields_of_a_batch_travel_in_one_block(cuda):
    more = {"weight": torch.ones(4), "name": "a"}
    pin(made(4, **more))  # the first batch shows how much memory one takes
    for count in (4, 3):
        batch = made(count, **more)
        pinned, moved = pinned_and_moved(batch)
        assert pinned.places.keys() == {"image", "label", "weight"}
        assert moved["image"].owner is moved["label"].owner
        assert moved["index"].owner is not moved["image"].owner
        assert pinned["image"].data_ptr() == batch["image"].data_ptr()


def test_a_batch_larger_than_the_one_before_is_whole(cuda):
    for count in (1, 8, 2):
        pinned_and_moved(made(count))


def test_nested_and_odd_tensors_are_pinned_one_by_one(cuda):
    for odd in (nest(), {"none": torch.ones(0), "turned": torch.arange(6).view(2, 3).t()}):
        for _ in range(2):
            pinned_and_moved(made(2, **odd))


def test_a_pinned_tensor_is_not_copied(cuda):
    own = torch.ones(5).pin_memory()
    assert pin({"own": own})["own"] is own


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_pinned_batch_keeps_its_values_on_the_way_to_a_real_gpu():
    pinned = pin(BATCH)
    assert all(tensor.is_pinned() for tensor in tensors(pinned).values())
    assert torch.equal(move(pinned, torch.device("cuda"))["image"].cpu(), BATCH["image"])
