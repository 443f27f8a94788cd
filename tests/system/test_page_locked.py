import os
import threading

import pytest
import torch

from framework.contracts.batch import pin
from framework.system.page_locked import Block, empty, use
from tests.simulated_cuda.patch import simulated
from tests.store.fuzz import in_a_process


def test_pieces_of_a_block_are_apart_and_begin_at_whole_words():
    with simulated(0):
        block = Block()
        block.take((1000,), torch.uint8)
        block.end()
        first = block.take((3,), torch.uint8).fill_(1)
        second = block.take((2, 2), torch.int64).fill_(2)
        starts = [block.start_of(piece) for piece in (first, second)]
        assert starts == [0, 256]
        assert len(block.end()) == 256 + 32
        assert (first.tolist(), second.tolist()) == ([1, 1, 1], [[2, 2], [2, 2]])


def test_a_batch_has_a_block_of_its_own():
    with simulated(0):
        block = Block()
        first = block.take((4,), torch.uint8)
        block.end()
        second = block.take((4,), torch.uint8)
        assert first.data_ptr() != second.data_ptr()
        assert block.start_of(first) is None


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
