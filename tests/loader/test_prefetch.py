import threading

import pytest
import torch

from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock
from tests.contract.cases import make_source


class Watched:
    """A real source that notes which batches were made, and by which thread."""

    def __init__(self, source):
        self.source, self.order, self.manifest, self.sample, self.close = (
            source,
            source.order,
            None,
            None,
            source.close,
        )
        self.made, self.second, self.stages = [], threading.Event(), source.stages

    def batches(self, epoch, start=0):
        for micro in self.source.batches(epoch, start):
            self.made.append(threading.current_thread().name)
            if len(self.made) == 2:
                self.second.set()
            yield MicroBatch(*micro)


@pytest.fixture
def watched():
    source = Watched(make_source("hdf5", 80))
    yield source
    source.close()


def _loader(source, depth=2):
    return PrefetchLoader(
        depth,
        True,
        context=LoaderContext(source, torch.device("cpu"), lambda batch, _: batch, HostClock()),
    )


def test_batches_are_made_by_another_thread(watched):
    list(_loader(watched).epoch(0))
    assert set(watched.made) == {"paceline-prefetch"}


def test_the_next_batch_is_made_while_the_step_runs(watched):
    batches = _loader(watched).epoch(0)
    next(batches)
    assert watched.second.wait(10)
    batches.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_batches_are_made_ahead_than_the_depth(watched, depth):
    for step, _ in enumerate(_loader(watched, depth).epoch(0)):
        assert len(watched.made) <= step + 1 + depth + 1  # taken, queued, in hand


def test_nothing_is_made_before_an_epoch_is_asked_for(watched):
    loader = _loader(watched)
    loader.epoch(0)
    assert watched.made == []
    assert loader.num_steps == 20


def test_nothing_is_pinned_where_the_device_is_the_host(watched):
    assert not any(
        tensor.is_pinned() for micro in _loader(watched).epoch(0) for tensor in micro.batch.values()
    )


def test_stats_tell_how_many_batches_lay_ready(watched):
    loader = _loader(watched, depth=3)
    batches = loader.epoch(0)
    next(batches)  # starts the thread
    loader.stats()
    for taken in range(1, 5):
        while len(watched.made) < taken + 4:  # three in the queue, one in the thread's hand
            threading.Event().wait(0.001)
        next(batches)
    assert loader.stats().ready == 3.0
    assert loader.stats().ready is None
    batches.close()


def test_stats_have_the_sources_stages(watched):
    loader = _loader(watched)
    list(loader.epoch(0))
    assert set(loader.stats().stages_s) == {"read"}
    assert loader.stats().depth == 2
