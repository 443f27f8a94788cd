import pytest
import torch

from framework.contracts import LoaderContext
from framework.loader.stream import StreamLoader
from framework.measure.clock import make_clock
from tests.contract.cases import make_source, micros

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def _loader(device, count=10, **options):
    source = make_source("hdf5", count, **options)
    device = torch.device(device)
    return StreamLoader(2, 2, context=LoaderContext(source, device, lambda batch, _: dict(batch), make_clock(device)))


def test_without_streams_the_copy_runs_in_line_and_says_so_once():
    loader = _loader("cpu")
    assert loader.notes == ("loader=stream: cpu has no streams; the copy runs in line",)
    assert loader.stream is None
    loader.close()


def test_without_streams_the_batches_are_the_same():
    loader = _loader("cpu")
    expected = micros(loader.context.source, 1)
    assert [micro.batch["index"].tolist() for micro in loader.epoch(1)] == [batch["index"] for batch, *_ in expected]
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
    found = []
    for micro in loader.epoch(0):
        torch.cuda._sleep(200_000)
        found.append(micro.batch["image"].clone())
        del micro
    assert [image.tolist() for image in found] == expected
    loader.close()


def test_stats_are_those_of_its_queue():
    loader = _loader("cpu")
    list(loader.epoch(0))
    stages_s, ready, depth = loader.stats()
    assert set(stages_s) == {"read"}
    assert depth == 2
    assert 0.0 <= ready <= 2.0
    loader.close()
