"""``loader=stream`` on a GPU; tests/simulated_cuda proves the order of its work without one."""

import random
import time

import pytest
import torch

from framework.contracts.data import MicroBatch, Source
from framework.contracts.loader import LoaderContext
from framework.loader.stream import StreamLoader
from framework.measure.clock import make_clock
from framework.order.batches import Order
from tests.contract.cases import make_source

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]


class Erratic(Source):
    """A source of batches of any size, late or early, each filled with its own number."""

    def __init__(self, seed, num_steps=40):
        self.draw = random.Random(seed)
        self.order = Order(num_steps, 1)

    def batches(self, epoch, start=0):
        for number in range(self.order.num_steps):
            time.sleep(self.draw.choice([0, 0, 0.002]))
            size = self.draw.choice([1, 17, 1000, 1 << 20, 1 << 22])
            values = torch.full((size,), number, dtype=torch.int32)
            yield MicroBatch({"index": torch.arange(1), "number": values}, 1.0, True)

    def close(self):
        pass


def loader_of(source, augment):
    device = torch.device("cuda")
    context = LoaderContext(source, device, augment, make_clock(device))
    return StreamLoader(3, 2, context=context)


def erratic(seed):
    """Return a loader whose augmentation takes a random time and changes the batch."""
    draw = random.Random(seed + 1)

    def augment(batch, _):
        torch.cuda._sleep(draw.choice([0, 100_000, 3_000_000]))
        return {**batch, "number": batch["number"] * 2 + 1}

    return loader_of(Erratic(seed), augment)


def taken(batches, seed, num_batches=None):
    """Yield each batch's number, least and greatest, still on the device."""
    draw = random.Random(seed + 2)
    for number, micro in enumerate(batches):
        torch.cuda._sleep(draw.choice([0, 100_000, 3_000_000]))
        values = micro.batch["number"]
        extremes = values.min(), values.max()
        scratch = torch.full_like(values, -1)  # what is given back is written to at once
        del micro, values, scratch
        yield (number * 2 + 1, *extremes)
        if number + 1 == num_batches:
            break
    batches.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_delays_and_sizes_every_batch_arrives_whole(seed):
    loader = erratic(seed)
    assert loader.notes == ()
    for num_batches in (40, 7):
        batches = list(taken(loader.epoch(0), seed, num_batches))
        assert len(batches) == num_batches
        assert all(expected == int(least) == int(most) for expected, least, most in batches)
    loader.close()


def test_a_hundred_epochs_take_no_more_memory_than_a_few():
    loader = loader_of(make_source("hdf5", 400), lambda batch, _: dict(batch))
    reserved, pinned = [], []
    for epoch in range(100):
        for micro in loader.epoch(epoch):
            torch.cuda._sleep(10_000)
            del micro
        reserved.append(torch.cuda.memory_reserved())
        pinned.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert reserved[-1] == reserved[9]
    # as many pinned blocks as were ever on their way at once
    assert pinned[-1] <= 2 * pinned[9]
    loader.close()
