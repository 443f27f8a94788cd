import subprocess
import sys
import threading

import torch

from framework.system import native
from framework.system.native import SIGNATURES, beside, find, limit_threads, num_threads


def test_all_functions_are_there_or_none():
    assert {find(name) is not None for name in SIGNATURES} == {native.are_compiled()}


def test_the_main_thread_shares_its_calls_and_others_do_not():
    result = []
    thread = threading.Thread(target=lambda: result.append(num_threads()))
    thread.start()
    thread.join()
    assert result == [1]
    assert num_threads() == torch.get_num_threads()


def test_a_library_that_was_deleted_is_skipped(monkeypatch):
    def load(*_, **__):
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(native.ctypes, "CDLL", load)
    assert native._openmp.__wrapped__() is None


def test_a_thread_that_feeds_a_gpu_has_most_of_the_cores_and_one_that_feeds_the_cpu_itself(
    monkeypatch,
):
    result = []

    def feed():
        limit_threads(3)
        result.extend([num_threads(), torch.get_num_threads()])

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert result == [3, 3]
    assert num_threads() == torch.get_num_threads()
    for cores, threads in ((1, 1), (6, 4), (64, 16)):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        assert beside(torch.device("cuda", 0)) == threads
        assert beside(torch.device("cpu")) == 1


def test_who_decodes_beside_the_step_has_a_team_that_sleeps_there():
    code = """
import os, torch
from framework.system.native import crowded, limit_threads
torch.set_num_threads(2)
tasks = lambda: len(os.listdir("/proc/self/task"))
torch.ones(1 << 17).add_(1)
before = tasks()
limit_threads(1)
with crowded():
    inside = tasks() - before
    try:
        with crowded():
            raise KeyError
    except KeyError:
        pass
print(inside)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["2"]), done.stderr


BESIDE = """
import torch
from framework.data.workers import _Pool
from framework.loader.queue import Ahead, Occupancy

torch.set_num_threads(3)
numbers = lambda: iter([torch.get_num_threads()])
ahead = Ahead((number for _ in range(1) for number in numbers()), 1, Occupancy())
pool = _Pool(1)
seen = []
pool.submit(lambda: seen.append(torch.get_num_threads())).result()
print(*ahead, *seen, torch.get_num_threads())
ahead.close()
pool.close(wait=True)
"""


def test_what_works_beside_the_step_makes_no_team_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1", "3"]), done.stderr
