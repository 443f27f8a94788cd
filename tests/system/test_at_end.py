"""What a program leaves open ends with it."""

import subprocess
import sys

import pytest

WORDS = """
import os, threading, time
from framework.system.at_end import close_at_end, forgotten, stop_at_end


class Threads:
    def __init__(self, name, seconds):
        self.name = name
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(seconds,), daemon=True)]
        self.threads[0].start()

    def run(self, seconds):
        self.stopped.wait()
        time.sleep(seconds)
        print(self.name, "ended", flush=True)

    def stop(self):
        self.stopped.set()


class Processes:
    def close(self):
        print("closed", flush=True)


"""


def ended(script: str) -> str:
    """Return what a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", WORDS + script],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_are_closed_before_threads_are_awaited():
    script = """
threads, processes = Threads("one", 0.5), Processes()
stop_at_end(threads)
close_at_end(processes)
"""
    assert ended(script) == "closed\none ended\n"


def test_what_has_closed_is_left_alone():
    script = """
threads, processes = Threads("one", 0.0), Processes()
stop_at_end(threads)
close_at_end(processes)
forgotten(threads)
forgotten(processes)
"""
    assert ended(script) == ""


@pytest.mark.slow
def test_a_thread_that_does_not_end_is_not_awaited_for_ever():
    script = """
slow, quick = Threads("slow", 1000.0), Threads("quick", 0.0)
stop_at_end(slow)
stop_at_end(quick)
"""
    assert ended(script) == "quick ended\n"


@pytest.mark.slow
def test_a_forked_process_leaves_them_to_its_parent():
    script = """
processes = Processes()
close_at_end(processes)
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
print("parent" if pid else "child", flush=True)
"""
    assert ended(script) == "child\nparent\nclosed\n"
