import os
import threading

import pytest
import torch

from framework.contracts.batch import described, empty, move, pin, taken, tensors, use
from tests.store.fuzz import in_a_process

BATCH = {"index": torch.arange(3), "image": torch.ones(3, 1, 2, 2)}


def test_moving_to_the_same_device_copies_nothing():
    moved = move(BATCH, torch.device("cpu"))
    assert list(moved) == list(BATCH)
    assert all(moved[name] is BATCH[name] for name in BATCH)


def test_moving_gives_a_dictionary_of_its_own():
    moved = move(BATCH, torch.device("cpu"))
    moved["new"] = moved.pop("image")
    assert set(BATCH) == {"index", "image"}


MIXED = {**BATCH, "name": ["a", "b", "c"], "origin": "here"}


def test_what_is_no_tensor_is_carried_along_without_moving():
    for same in (move(MIXED, torch.device("meta")), pin({"name": MIXED["name"], "origin": "here"})):
        assert same["name"] is MIXED["name"]
        assert same["origin"] == "here"
    assert list(tensors(MIXED)) == ["index", "image"]


def test_records_are_taken_from_tensors_and_lists():
    result = taken(MIXED, torch.tensor([2, 0]))
    assert (result["index"].tolist(), result["name"], result["origin"]) == (
        [2, 0],
        ["c", "a"],
        "here",
    )


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (MIXED, "image (1, 2, 2), name list of 3, origin str"),
        (None, "a NoneType"),
        ({3: torch.ones(2)}, ""),
    ],
)
def test_anything_can_be_described(batch, words):
    assert described(batch) == words


def test_moving_takes_every_tensor_to_the_device():
    moved = move(BATCH, torch.device("meta"))
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}
    assert moved["image"].shape == (3, 1, 2, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_pinned_batch_keeps_its_values_on_the_way_to_the_device():
    pinned = pin(BATCH)
    assert all(tensor.is_pinned() for tensor in pinned.values())
    assert torch.equal(move(pinned, torch.device("cuda"))["image"].cpu(), BATCH["image"])


def test_memory_is_page_locked_in_the_threads_that_ask_for_it():
    assert not empty((2, 3), torch.uint8).is_pinned()
    use(torch.device("cpu"), pinned=False)
    result = empty((2, 3), torch.int64)
    assert (result.shape, result.dtype, result.is_pinned()) == ((2, 3), torch.int64, False)


def test_a_process_forked_from_a_thread_that_pins_does_not():
    codes = []

    def feed():
        use(torch.device("cpu"), pinned=True)
        codes.append(in_a_process(lambda: os._exit(40 + empty((2, 3), torch.uint8).is_pinned())))

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert codes == [40]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_thread_that_feeds_a_gpu_makes_batches_in_page_locked_memory():
    result = []

    def feed():
        use(torch.device("cuda", 0), pinned=True)
        item = empty((2, 3), torch.uint8)
        result.extend(
            [item.is_pinned(), pin({"image": item})["image"].data_ptr() == item.data_ptr()]
        )

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert result == [True, True]
    assert not empty((2, 3), torch.uint8).is_pinned()
