import threading

import torch

from framework.contracts.loader import LoaderContext
from framework.loader.plain import PlainLoader
from framework.measure.clock import HostClock
from tests.contract.cases import make_source


def _loader(augment, pin_memory=False, **options):
    source = make_source("hdf5", 10, **options)
    return PlainLoader(
        pin_memory, context=LoaderContext(source, torch.device("cpu"), augment, HostClock())
    )


def test_everything_runs_in_the_callers_thread():
    threads = []

    def augment(batch, epoch):
        threads.append((threading.get_ident(), threading.active_count()))
        return batch

    before = threading.active_count()
    loader = _loader(augment)
    assert len(list(loader.epoch(0))) == 3
    assert set(threads) == {(threading.get_ident(), before)}
    loader.close()


def test_nothing_is_pinned_where_the_device_is_the_host():
    loader = _loader(lambda batch, _: batch, pin_memory=True)
    assert not any(
        tensor.is_pinned() for micro in loader.epoch(0) for tensor in micro.batch.values()
    )
    loader.close()


def test_there_is_nothing_to_note():
    loader = _loader(lambda batch, _: batch)
    assert loader.notes == ()
    loader.close()


def test_closing_the_loader_closes_the_source():
    loader = _loader(lambda batch, _: batch)
    list(loader.epoch(0))
    loader.close()
    assert loader.context.source.store._mapped is None


def test_there_is_no_queue_to_have_batches_ready_in():
    loader = _loader(lambda batch, _: batch)
    list(loader.epoch(0))
    assert loader.stats()[1:3] == (None, 0)
    loader.close()
