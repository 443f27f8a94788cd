"""Cores that other programs keep busy."""

import subprocess
import sys
import time

from framework.commands.watch.other_programs import OtherPrograms


def test_a_program_that_is_not_our_child_of_multiprocessing_counts():
    others = OtherPrograms()
    assert others.cores() >= 0
    words = [sys.executable, "-c", "import time\nwhile True: time.perf_counter()"]
    with subprocess.Popen(words) as busy:
        time.sleep(0.5)
        cores = others.cores()
        busy.kill()
    assert cores > 0


def test_ranks_do_not_count_each_other(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert OtherPrograms().cores() == 0
