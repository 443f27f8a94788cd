import random
import time

import pytest
import torch

from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext
from framework.errors import DataError
from framework.loader.stream import StreamLoader
from framework.measure.clock import make_clock
from framework.order.batches import Order
from tests.contract.cases import make_source, micros

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def _loader(device, count=10, **options):
    source = make_source("hdf5", count, **options)
    device = torch.device(device)
    return StreamLoader(
        2,
        2,
        context=LoaderContext(source, device, lambda batch, _: dict(batch), make_clock(device)),
    )


def test_without_streams_the_copy_runs_in_line_and_says_so_once():
    loader = _loader("cpu")
    assert loader.notes == ("loader=stream: cpu has no streams; the copy runs in line",)
    assert loader.stream is None
    loader.close()


def test_without_streams_the_batches_are_the_same():
    loader = _loader("cpu")
    expected = micros(loader.context.source, 1)
    assert [micro.batch["index"].tolist() for micro in loader.epoch(1)] == [
        batch["index"] for batch, *_ in expected
    ]
    loader.close()


@pytest.mark.gpu
@gpu
def test_with_streams_there_is_nothing_to_note():
    loader = _loader("cuda")
    assert loader.notes == ()
    loader.close()


@pytest.mark.gpu
@gpu
def test_a_batch_in_use_is_never_overwritten_by_the_next_copy():
    loader = _loader("cuda", 400)
    expected = [batch["image"] for batch, *_ in micros(loader.context.source)]
    images = []
    for micro in loader.epoch(0):
        torch.cuda._sleep(200_000)
        images.append(micro.batch["image"].clone())
        del micro
    assert [image.tolist() for image in images] == expected
    loader.close()


def test_stats_are_those_of_its_queue():
    loader = _loader("cpu")
    list(loader.epoch(0))
    stages_s, ready, depth, _ = loader.stats()
    assert set(stages_s) == {"read"}
    assert depth == 2
    assert 0.0 <= ready <= 2.0
    loader.close()


class Erratic:
    """A Source whose batches have any size and come late or early. It may end in an error.

    Each batch is filled with its own number.
    """

    def __init__(self, seed: int, num_steps: int = 40, breaks_at: int | None = None) -> None:
        self.draw, self.num_steps, self.breaks_at = random.Random(seed), num_steps, breaks_at
        self.order = Order(num_steps, 1)

    def batches(self, epoch: int, start: int = 0):
        for number in range(self.num_steps):
            if number == self.breaks_at:
                raise DataError(106, "record 7", "not a readable image", "mend it")
            time.sleep(self.draw.choice([0, 0, 0.002]))
            size = self.draw.choice([1, 17, 1000, 1 << 20, 1 << 22])
            yield MicroBatch(
                {
                    "index": torch.arange(1),
                    "number": torch.full((size,), number, dtype=torch.int32),
                },
                1.0,
                True,
            )

    def stages(self):
        return {}

    def close(self):
        pass


def _erratic(seed, **options):
    """Return a loader whose augmentation takes a random time and changes the batch."""
    draw = random.Random(seed + 1)

    def augment(batch, _):
        torch.cuda._sleep(draw.choice([0, 100_000, 3_000_000]))
        return {**batch, "number": batch["number"] * 2 + 1}

    device = torch.device("cuda")
    return StreamLoader(
        3, 2, context=LoaderContext(Erratic(seed, **options), device, augment, make_clock(device))
    )


def _taken(loader, seed, num_batches=None):
    """Return the expected number, the least and the greatest number of each batch.

    The numbers are read from the device after the last batch.
    """
    draw, taken = random.Random(seed + 2), []
    batches = loader.epoch(0)
    for number, micro in enumerate(batches):
        torch.cuda._sleep(draw.choice([0, 100_000, 3_000_000]))
        values = micro.batch["number"]
        taken.append((number * 2 + 1, values.min(), values.max()))
        scratch = torch.full_like(values, -1)  # what is given back is written to at once
        del micro, values, scratch
        if number + 1 == num_batches:
            break
    batches.close()
    return [(expected, int(least), int(most)) for expected, least, most in taken]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_delays_and_sizes_every_batch_arrives_whole(seed):
    loader = _erratic(seed)
    taken = _taken(loader, seed)
    assert len(taken) == 40
    assert all(expected == least == most for expected, least, most in taken)
    early = _taken(loader, seed, num_batches=7)
    assert all(expected == least == most for expected, least, most in early)
    loader.close()


@pytest.mark.gpu
@gpu
def test_an_error_of_the_source_arrives_and_what_came_before_it_is_whole():
    loader, taken = _erratic(1, breaks_at=11), []
    with pytest.raises(DataError, match="D106"):  # noqa: PT012
        for number, micro in enumerate(loader.epoch(0)):
            taken.append((number * 2 + 1, micro.batch["number"].min(), micro.batch["number"].max()))
    assert len(taken) == 11
    assert all(expected == int(least) == int(most) for expected, least, most in taken)
    loader.close()


@pytest.mark.gpu
@gpu
def test_a_hundred_epochs_take_no_more_memory_than_a_few():
    loader = _loader("cuda", 400)
    reserved = []
    for epoch in range(100):
        for micro in loader.epoch(epoch):
            torch.cuda._sleep(10_000)
            del micro
        reserved.append(
            (
                torch.cuda.memory_reserved(),
                torch.cuda.host_memory_stats()["allocated_bytes.current"],
            )
        )
    assert reserved[-1][0] == reserved[9][0]
    assert (
        reserved[-1][1] <= 2 * reserved[9][1]
    )  # as many pinned blocks as were ever on their way at once
    loader.close()
