import threading
from contextlib import closing

import pytest

from framework.loader.queue import Ahead, Occupancy


def _ahead(produce, depth, occupancy=None):
    return Ahead(produce, depth, occupancy or Occupancy())


def _names():
    return [thread.name for thread in threading.enumerate()]


def _count(produced, stop, closed=None):
    """Yield numbers, note them in ``produced``, and note in ``closed`` which thread closes it."""
    try:
        for number in range(stop):
            produced.append(number)
            yield number
    finally:
        if closed is not None:
            closed.append(threading.current_thread().name)


def _broken(good):
    yield from range(good)
    raise ValueError("the producer broke")


def _failing(*_):
    raise OSError("libgomp.so.1 (deleted)")


def test_a_thread_that_cannot_begin_raises_where_items_are_awaited(monkeypatch):
    monkeypatch.setattr("framework.loader.queue.limit_threads", _failing)
    with closing(_ahead(iter(range(3)), 2)) as ahead, pytest.raises(OSError, match="deleted"):
        list(ahead)


def test_a_producer_that_cannot_be_closed_raises_where_items_are_awaited():
    def produce():
        try:
            yield 1
        finally:
            _failing()

    with closing(_ahead(produce(), 2)) as ahead, pytest.raises(OSError, match="deleted"):
        list(ahead)


@pytest.mark.parametrize("depth", [1, 2, 10])
@pytest.mark.parametrize("count", [0, 1, 25])
def test_items_come_in_the_order_they_were_made(depth, count):
    with closing(_ahead(iter(range(count)), depth)) as ahead:
        assert list(ahead) == list(range(count))


def test_an_item_is_ready_once_the_producer_has_made_it():
    may_produce = threading.Event()

    def produce():
        may_produce.wait()
        yield 1

    with closing(_ahead(produce(), 2)) as ahead:
        assert not ahead.is_ready
        may_produce.set()
        assert next(iter(ahead)) == 1
        while not ahead.is_ready:  # the end
            threading.Event().wait(0.001)


@pytest.mark.parametrize("good", [0, 1, 5])
def test_an_error_is_raised_where_its_item_would_have_come(good):
    with closing(_ahead(_broken(good), 2)) as ahead:
        items = iter(ahead)
        assert [next(items) for _ in range(good)] == list(range(good))
        with pytest.raises(ValueError, match="the producer broke"):
            next(items)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_any_kind_of_error_reaches_the_consumer(error):
    def produce():
        yield 1
        raise error

    with closing(_ahead(produce(), 2)) as ahead, pytest.raises(error):
        list(ahead)


def test_the_producer_never_runs_further_ahead_than_the_depth():
    produced = []
    with closing(_ahead(_count(produced, 50), 3)) as ahead:
        for number in ahead:
            assert len(produced) <= number + 1 + 3 + 1  # taken, queued, in hand


def test_the_producer_works_while_the_consumer_waits():
    started = threading.Event()

    def produce():
        yield 1
        started.set()
        yield 2

    with closing(_ahead(produce(), 2)) as ahead:
        assert started.wait(10)
        assert list(ahead) == [1, 2]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_early_close_ends_the_thread_and_closes_the_producer_in_it(taken):
    produced, closed = [], []
    ahead = _ahead(_count(produced, 10**9, closed), 2)
    items = iter(ahead)
    assert [next(items) for _ in range(taken)] == list(range(taken))
    while not produced:  # a generator that never started has nothing to close
        threading.Event().wait(0.001)
    ahead.close()
    assert closed == ["paceline-prefetch"]
    assert "paceline-prefetch" not in _names()


def test_closing_twice_does_nothing_more():
    ahead = _ahead(iter(range(5)), 2)
    ahead.close()
    ahead.close()
    assert "paceline-prefetch" not in _names()


def test_closing_after_the_end_does_nothing():
    ahead = _ahead(iter(range(5)), 2)
    assert len(list(ahead)) == 5
    ahead.close()
    assert "paceline-prefetch" not in _names()


def test_occupancy_is_the_mean_since_it_was_taken():
    occupancy = Occupancy()
    for num_ready in (0, 1, 5):
        occupancy.count(num_ready)
    assert occupancy.take() == 2.0
    occupancy.count(3)
    assert (occupancy.take(), occupancy.take()) == (3.0, None)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_full_queue_has_its_depth_ready(depth):
    produced, occupancy = [], Occupancy()
    with closing(_ahead(_count(produced, 50), depth, occupancy)) as ahead:
        items = iter(ahead)
        for taken in range(5):
            while len(produced) < taken + depth + 1:  # one is in the producer's hand
                threading.Event().wait(0.001)
            next(items)
    assert occupancy.take() == depth


def test_an_empty_queue_has_none_ready():
    asked, occupancy = threading.Semaphore(0), Occupancy()

    def produce():
        for number in range(5):
            asked.acquire()
            yield number

    with closing(_ahead(produce(), 2, occupancy)) as ahead:
        get = ahead._queue.get
        ahead._queue.get = lambda: (asked.release(), get())[1]
        assert list(ahead) == [0, 1, 2, 3, 4]
    assert occupancy.take() == 0.0


def test_the_end_is_no_item_that_lies_ready():
    occupancy = Occupancy()
    with closing(_ahead(iter(range(3)), 5, occupancy)) as ahead:
        ahead._thread.join(10)
        assert list(ahead) == [0, 1, 2]
    assert occupancy.take() == (3 + 2 + 1) / 3
