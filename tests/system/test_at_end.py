"""What a program leaves open ends with it."""

import os
import threading
import time

import pytest

from framework.system import at_end
from framework.system.at_end import close_at_end, stop_at_end
from tests.forks import forked


class Threads:
    """A thread that works for so many seconds after it was told to stop."""

    def __init__(self, name, seconds, ended):
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(name, seconds, ended), daemon=True)]
        self.threads[0].start()

    def run(self, name, seconds, ended):
        self.stopped.wait()
        time.sleep(seconds)
        ended.append(name)

    def stop(self):
        self.stopped.set()


class Processes:
    def __init__(self, ended):
        self.ended = ended

    def close(self):
        self.ended.append("processes")


@pytest.fixture
def ended(monkeypatch):
    """Return a list of what ends, in this order. What other tests have left open stays so."""
    monkeypatch.setattr(at_end, "_processes", type(at_end._processes)())
    monkeypatch.setattr(at_end, "_threads", type(at_end._threads)())
    return []


def test_processes_are_closed_before_threads_are_awaited(ended):
    threads, processes = Threads("threads", 0.2, ended), Processes(ended)
    stop_at_end(threads)
    close_at_end(processes)
    at_end._end()
    assert ended == ["processes", "threads"]


def test_a_thread_that_does_not_end_is_not_awaited_for_ever(ended, monkeypatch):
    monkeypatch.setattr(at_end, "LONGEST_S", 0.2)
    slow, quick = Threads("slow", 1.0, ended), Threads("quick", 0.0, ended)
    stop_at_end(slow)
    stop_at_end(quick)
    at_end._end()
    assert ended == ["quick"]


def test_a_forked_process_leaves_them_to_its_parent(ended):
    processes = Processes(ended)
    close_at_end(processes)

    def work():
        at_end._end()
        os._exit(len(ended))

    process = forked(work)
    process.join()
    assert process.exitcode == 0
    at_end._end()
    assert ended == ["processes"]
