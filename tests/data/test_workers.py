import multiprocessing
import os
import re
import signal
import threading

import pytest
import torch

from framework.data.reader import Request
from framework.data.workers import AHEAD, Workers
from framework.errors import ConfigError, DataError, ResourceError

KINDS = [(0, "thread"), (1, "thread"), (2, "thread"), (2, "process")]
HERE = os.getpid()


def _requests(count):
    return (Request(0, torch.tensor([number]), training=False) for number in range(count))


def _read(request):
    return {"index": request.indices * 10}


def _read_badly(request):
    if int(request.indices[0]) == 3:
        raise DataError(106, "record 3", "not a readable image", "mend it")
    return _read(request)


def _stumble(request):
    if int(request.indices[0]) == 3:
        raise LookupError("a user's mistake")
    return _read(request)


def _die(request):
    if int(request.indices[0]) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return _read(request)


def _who(request):
    return {"thread": torch.tensor(threading.get_ident()), "process": torch.tensor(os.getpid())}


@pytest.fixture
def make():
    """Makes Workers that are closed at the end."""
    made = []

    def workers(read, num, kind):
        made.append(Workers(read, num, kind))
        return made[-1]

    yield workers
    for one in made:
        one.close()


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_results_come_in_the_order_of_the_requests(make, num, kind):
    workers = make(_read, num, kind)
    for count in (25, 0, 1, 7):
        assert [int(batch["index"]) for batch in workers.map(_requests(count))] == list(range(0, 10 * count, 10))


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_an_error_is_raised_where_the_result_would_have_come(make, num, kind):
    results = make(_read_badly, num, kind).map(_requests(9))
    assert [int(next(results)["index"]) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(DataError, match=r"D106.*record 3: not a readable image; mend it"):
        next(results)


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_after_an_error_the_next_requests_are_answered(make, num, kind):
    workers = make(_read_badly, num, kind)
    with pytest.raises(DataError):
        list(workers.map(_requests(9)))
    assert [int(batch["index"]) for batch in workers.map(_requests(3))] == [0, 10, 20]


@pytest.mark.parametrize(("num", "kind"), KINDS[1:])
def test_a_closed_iterator_leaves_no_old_result_to_the_next(make, num, kind):
    workers = make(_read, num, kind)
    results = workers.map(_requests(20))
    next(results)
    results.close()
    assert [int(batch["index"]) for batch in workers.map(_requests(4))] == [0, 10, 20, 30]


def test_any_error_in_a_process_comes_back_in_words_that_name_the_records(make):
    with pytest.raises(DataError, match=r"D108.*records \[3\].*LookupError: a user's mistake"):
        list(make(_stumble, 2, "process").map(_requests(9)))


def test_any_error_in_a_thread_comes_back_as_it_is(make):
    with pytest.raises(LookupError, match="a user's mistake"):
        list(make(_stumble, 2, "thread").map(_requests(9)))


def _lose_a_worker(queue):
    """In a process of its own: torch's SIGCHLD handler, which tells of the loss, may raise in any line of the main thread."""
    workers = Workers(_die, 2, "process")
    try:
        list(workers.map(_requests(20)))
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is told to the parent
        queue.put((type(error).__name__, str(error)))


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_process_is_a_resource_error(attempt):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_lose_a_worker, args=(queue,))
    child.start()
    child.join(60)
    assert child.exitcode is not None, "it hangs"
    assert not queue.empty(), "it ended without a word"
    kind, words = queue.get()
    assert kind == ResourceError.__name__, words
    assert re.search(r"R102.*workers\.num = 2.*worker process was lost", words)


def test_no_workers_means_the_callers_thread(make):
    batch = next(make(_who, 0, "process").map(_requests(1)))
    assert int(batch["thread"]) == threading.get_ident()
    assert int(batch["process"]) == HERE


def test_threads_are_other_threads_of_this_process(make):
    batches = list(make(_who, 2, "thread").map(_requests(8)))
    assert threading.get_ident() not in {int(batch["thread"]) for batch in batches}
    assert {int(batch["process"]) for batch in batches} == {HERE}


def test_processes_are_as_many_as_asked_and_live_from_epoch_to_epoch(make):
    workers = make(_who, 2, "process")
    first, second = ({int(batch["process"]) for batch in workers.map(_requests(8))} for _ in range(2))
    assert len(first) == 2
    assert first == second
    assert HERE not in first


def test_threads_take_only_a_few_requests_ahead(make):
    taken = []
    results = make(_read, 2, "thread").map(taken.append(request) or request for request in _requests(50))
    next(results)
    assert len(taken) == 2 * AHEAD
    results.close()


def test_an_early_close_of_threads_leaves_none(make):
    results = make(_read, 2, "thread").map(_requests(50))
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-reader")]


def test_closing_ends_the_processes():
    before = set(multiprocessing.active_children())
    workers = Workers(_read, 2, "process")
    list(workers.map(_requests(3)))
    assert len(set(multiprocessing.active_children()) - before) == 2
    workers.close()
    assert not set(multiprocessing.active_children()) - before


def test_the_global_random_numbers_do_not_depend_on_the_workers(make):
    state = torch.get_rng_state()
    list(make(_read, 2, "process").map(_requests(3)))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"C107.*workers\.kind = fiber"):
        Workers(_read, 1, "fiber")
