import os
import threading

import pytest
import torch

from framework.batch import empty, move, pin, use
from tests.data.fuzz import in_a_process

BATCH = {"index": torch.arange(3), "image": torch.ones(3, 1, 2, 2)}


def test_moving_to_the_same_device_copies_nothing():
    moved = move(BATCH, torch.device("cpu"))
    assert list(moved) == list(BATCH)
    assert all(moved[name] is BATCH[name] for name in BATCH)


def test_moving_gives_a_dictionary_of_its_own():
    moved = move(BATCH, torch.device("cpu"))
    moved["new"] = moved.pop("image")
    assert set(BATCH) == {"index", "image"}


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
    found = empty((2, 3), torch.int64)
    assert (found.shape, found.dtype, found.is_pinned()) == ((2, 3), torch.int64, False)


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
    found = []

    def feed():
        use(torch.device("cuda", 0), pinned=True)
        one = empty((2, 3), torch.uint8)
        found.extend([one.is_pinned(), pin({"image": one})["image"].data_ptr() == one.data_ptr()])

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert found == [True, True]
    assert not empty((2, 3), torch.uint8).is_pinned()
