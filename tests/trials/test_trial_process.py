import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.errors import DataError
from framework.system import stopping
from framework.trials import trial_process as module
from framework.trials.trial_process import Measured, TrialProcess, TrialSetting, in_turn, repeated

NOBODY = Grant(frozenset(), "")
LARGE = ["data=synthetic", "data.source.num_records=400000", "device=cpu"]


def setting(*words: str) -> TrialSetting:
    return TrialSetting("it", *composed(["data=synthetic", "batch_size=8", *words], NOBODY))


@pytest.fixture
def guarded():
    with closing(TrialProcess(400 << 20)) as process:
        yield process


def sized(batch_size: int) -> TrialSetting:
    config, _ = composed(LARGE, NOBODY)
    return TrialSetting(f"batch_size = {batch_size}", {**config, "batch_size": batch_size})


@pytest.mark.slow
def test_after_a_lack_of_memory_smaller_sizes_still_run(guarded):
    assert guarded.facts(sized(8)).num_records == 400_000
    lost = guarded.measure(sized(400_000), "visit", 0.02, 0.0, limit_s=100.0)
    assert lost.error is not None
    assert lost.lacks_memory
    again = guarded.measure(sized(16), "visit", 0.02, 0.0, limit_s=100.0)
    assert again.records_per_s > 0
    assert again.peak_bytes > 1 << 20


@pytest.mark.slow
def test_a_killed_process_late_steps_and_low_memory_are_results(guarded, monkeypatch):
    guarded.facts(sized(8))
    os.kill(guarded.process.pid, signal.SIGKILL)
    killed = guarded.measure(sized(16), "visit", 0.02, 0.0)
    assert "R185" in str(killed.error)
    assert "SIGKILL" in str(killed.error)
    assert killed.lacks_memory
    monkeypatch.setattr(module, "START_S", 0.0)
    late = guarded.measure(sized(16), "visit", 30.0, 0.0, limit_s=0.2)
    assert (late.is_late, late.lacks_memory) == (True, False)
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 0)
    low = guarded.measure(sized(16), "visit", 60.0, 0.0)
    assert "memory was nearly used up" in str(low.error)
    assert low.lacks_memory


@pytest.mark.slow
def test_facts_of_a_run_that_cannot_start_raise_its_error(guarded):
    config = composed(["data.train=nowhere.h5", "prepare=null"], NOBODY)[0]
    with pytest.raises(DataError, match="nowhere"):
        guarded.facts(TrialSetting("it", config))


@pytest.mark.slow
def test_ranks_of_ddp_are_measured_together():
    with closing(TrialProcess()) as process:
        two = setting("parallel=ddp", "parallel.num_processes=2")
        measured = process.measure(two, "train", 0.2, 0.0)
    assert measured.error is None
    assert min(measured.windows) > 0  # how many there are depends on the machine
    assert measured.spans_s.keys() >= {"wait", "forward", "backward"}


def test_a_process_that_dies_is_reported_with_its_last_words(monkeypatch):
    monkeypatch.setattr(module, "COMMAND", ("/bin/sh", "-c", "echo no such thing >&2; exit 3"))
    with closing(TrialProcess()) as process:
        measured = process.measure(setting(), "loader", 0.1, 0.0)
    assert "R185]: it: the process was lost: exit code 3, no such thing" in str(measured.error)


def interrupt_once(folder: Path) -> None:
    """Interrupt the main thread once it waits: before that, the process is not yet its own."""
    while not (stopping._graceful and (folder / "grandchild").exists()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_process_and_what_it_started(tmp_path, monkeypatch):
    thread = threading.Thread(target=interrupt_once, args=(tmp_path,))
    script = "trap '' TERM; sleep 60 & echo $! > part; mv part grandchild; wait; wait"
    monkeypatch.setattr(module, "COMMAND", ("/bin/sh", "-c", script))
    monkeypatch.setattr(module, "END_S", 0.3)
    thread.start()
    with pytest.raises(KeyboardInterrupt), closing(TrialProcess()) as process:
        process.measure(setting(), "loader", 0.1, 0.0)
    thread.join()
    pid = int((tmp_path / "grandchild").read_text())
    end = time.monotonic() + 5
    while not stopping.has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert stopping.has_ended(pid)


def test_the_order_is_another_in_each_repeat_and_the_same_for_a_seed():
    orders = [[cell for at, cell in in_turn(8, 4, seed=1) if at == repeat] for repeat in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(in_turn(8, 4, seed=1)) == list(in_turn(8, 4, seed=1))
    assert list(in_turn(8, 4, seed=1)) != list(in_turn(8, 4, seed=2))


def test_a_setting_that_does_not_run_is_not_tried_again(monkeypatch):
    def measure(self, tried, *times) -> Measured:
        return Measured(error=None if tried.name == "good" else DataError(101, "x", "bad", "mend"))

    monkeypatch.setattr(TrialProcess, "measure", measure)
    settings = [TrialSetting("good", {}), TrialSetting("bad", {})]
    measured = [(repeat, n) for repeat, n, _ in repeated(settings, "train", 1.0, 0.0, 3, 0)]
    assert sorted(measured) == [(0, 0), (0, 1), (1, 0), (2, 0)]
