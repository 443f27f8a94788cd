import os
import signal
import time

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune import memory_guard as module
from framework.commands.tune.batch_sizes import Trial
from framework.commands.tune.memory_guard import TrialProcess, smallest_fails
from framework.errors import DataError

NOBODY = Grant(frozenset(), "")
LARGE = ["data=synthetic", "data.source.num_records=400000", "device=cpu"]


@pytest.fixture
def guarded():
    made = TrialProcess(composed(LARGE, NOBODY)[0], (), 400 << 20)
    yield made
    made.close()


@pytest.mark.slow
def test_after_a_lack_of_memory_smaller_sizes_still_run(guarded):
    assert (guarded.num_records, guarded.cuda) == (400_000, False)
    lost = guarded.attempt(400_000, 0.02, 100.0)
    assert not lost.fits
    assert lost.memory
    again = guarded.attempt(16, 0.02, 100.0)
    assert again.fits
    assert again.peak_bytes > 1 << 20


@pytest.mark.slow
def test_a_killed_process_and_late_steps_are_results(guarded):
    os.kill(guarded._process.pid, signal.SIGKILL)
    killed = guarded.attempt(16, 0.02, 100.0)
    assert "SIGKILL" in killed.why
    assert killed.memory
    late = guarded.attempt(16, 30.0, 0.2)
    assert (late.late, late.memory, late.fits) == (True, False, False)


@pytest.mark.slow
def test_low_memory_of_the_machine_ends_a_trial(guarded, monkeypatch):
    start = time.monotonic()
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 0)
    low = guarded.attempt(16, 60.0, 100.0)
    assert "memory was nearly used up" in low.why
    assert low.memory
    assert time.monotonic() - start < 60


def test_a_run_that_cannot_start_raises_its_error():
    config = composed(["data.train=nowhere.h5", "prepare=null"], NOBODY)[0]
    with pytest.raises(DataError, match="nowhere"):
        TrialProcess(config, ())


def test_a_smallest_size_that_fails_is_an_error_with_advice():
    assert "batch_size = 8: no memory; free memory" in str(
        smallest_fails(Trial(8, why="no memory", memory=True))
    )
    assert "see that 'paceline train' runs" in str(smallest_fails(Trial(8, why="ValueError: x")))
