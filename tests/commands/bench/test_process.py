import os
import signal
import threading
import time
from pathlib import Path

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.bench import process as module
from framework.commands.bench.grid import BenchCell, BenchPlan
from framework.commands.bench.process import measure_cell
from framework.system import stopping

NOBODY = Grant(frozenset(), "")


def cell(*words: str) -> BenchCell:
    return BenchCell({}, *composed(["data=synthetic", "batch_size=8", *words], NOBODY))


@pytest.mark.slow
def test_ranks_of_ddp_are_measured_together():
    measured = measure_cell(
        cell("parallel=ddp", "parallel.num_processes=2"), BenchPlan("train", 1, 0.2, 0.0, 0)
    )
    assert measured["windows"]  # how many are measured in that time depends on the machine
    assert min(measured["windows"]) > 0
    assert measured["spans_s"].keys() >= {"wait", "forward", "backward"}


def test_a_process_that_dies_is_reported_with_its_last_words(monkeypatch):
    monkeypatch.setattr(
        module.sys, "executable", "/bin/sh"
    )  # which takes -m and then fails to find the script
    measured = measure_cell(cell(), BenchPlan("loader", 1, 0.1, 0.0, 0))
    assert measured["failed"].startswith("the process ended with exit code ")
    assert measured["failed"].count("\n") == 0


def interrupt_once(folder: Path) -> None:
    """Interrupt the main thread once it waits: before that, the process is not yet its own."""
    while not (stopping._polite and (folder / "grandchild").exists()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_process_and_what_it_started(tmp_path):
    thread = threading.Thread(target=interrupt_once, args=(tmp_path,))
    thread.start()
    command = [
        "/bin/sh",
        "-c",
        "trap '' TERM; sleep 60 & echo $! > part; mv part grandchild; wait; wait",
    ]
    module_end, module.END_S = module.END_S, 0.3
    try:
        with pytest.raises(KeyboardInterrupt):
            module._wait(command, tmp_path / "stderr.txt")
    finally:
        module.END_S = module_end
        thread.join()
    pid = int((tmp_path / "grandchild").read_text())
    end = time.monotonic() + 5
    while (
        Path(f"/proc/{pid}").exists()
        and ") Z" not in Path(f"/proc/{pid}/stat").read_text()
        and time.monotonic() < end
    ):
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists() or ") Z" in Path(f"/proc/{pid}/stat").read_text()
