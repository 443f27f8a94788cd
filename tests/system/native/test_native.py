import multiprocessing
import os
import threading
from contextlib import suppress

import torch

from framework.data.workers import _Pool
from framework.loader.prefetch import Ahead, Occupancy
from framework.system import native
from tests.forks import forked


def test_all_functions_are_there_or_none():
    assert {native.find(name) is not None for name in native.SIGNATURES} == {native.are_compiled()}


def test_the_main_thread_shares_its_calls_and_others_do_not():
    result = []
    thread = threading.Thread(target=lambda: result.append(native.num_threads()))
    thread.start()
    thread.join()
    assert result == [1]
    assert native.num_threads() == torch.get_num_threads()


def test_a_thread_that_feeds_a_gpu_has_most_of_the_cores_and_one_that_feeds_the_cpu_itself(
    monkeypatch,
):
    result = []

    def feed():
        native.limit_threads(3)
        result.extend([native.num_threads(), torch.get_num_threads()])

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert result == [3, 3]
    assert native.num_threads() == torch.get_num_threads()
    for cores, threads in ((1, 1), (6, 4), (64, 16)):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        assert native.num_threads_beside(torch.device("cuda", 0)) == threads
        assert native.num_threads_beside(torch.device("cpu")) == 1


def result_of(work):
    """Return what ``work`` returns in a forked process that has not used OpenMP."""
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = forked(lambda: queue.put(work()))
    process.join(60)
    assert process.exitcode == 0
    return queue.get()


def num_tasks_inside():
    """Return how many threads this process has more while it decodes beside the step."""
    torch.set_num_threads(2)
    torch.ones(1 << 17).add_(1)
    before = len(os.listdir("/proc/self/task"))
    native.limit_threads(1)
    with native.crowded():
        inside = len(os.listdir("/proc/self/task"))
        with suppress(KeyError), native.crowded():
            raise KeyError
    return inside - before


def test_who_decodes_beside_the_step_has_a_team_that_sleeps_there():
    assert result_of(num_tasks_inside) == 2


def numbers_of_threads():
    """Return torch's number of threads in a thread that reads ahead, in a pool and here."""
    torch.set_num_threads(3)
    ahead = Ahead((torch.get_num_threads() for _ in range(1)), 1, Occupancy())
    pool = _Pool(1)
    numbers = [*ahead, pool.submit(torch.get_num_threads).result(), torch.get_num_threads()]
    ahead.close()
    pool.close(wait=True)
    return numbers


def test_what_works_beside_the_step_makes_no_team_of_its_own():
    assert result_of(numbers_of_threads) == [1, 1, 3]
