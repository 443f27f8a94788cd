import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import framework.cli.signals
from framework.cli.signals import StopSignals, closed_output_code
from framework.errors import EXIT_INTERRUPTED, EXIT_PIPE, EXIT_PREEMPTED
from framework.system.stopping import NUMBERS, install
from tests.faults.forked import Command, wait_for
from tests.forks import forked


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_only_asks_the_run_to_stop(number):
    with StopSignals(of_rank=False) as signals:
        assert not signals.stopped()
        signal.raise_signal(number)
        assert signals.stopped()
    code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_PREEMPTED
    assert signals.exit_code == code


def test_a_signal_twice_within_a_second_is_one_signal():
    with StopSignals(of_rank=False) as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert signals.stopped()


def signalled_twice():
    install()  # as the command does
    framework.cli.signals.SAME_S = 0.0
    with StopSignals(of_rank=False):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_ends_the_run_at_once():
    process = forked(signalled_twice)
    process.join()
    assert process.exitcode == EXIT_INTERRUPTED


def test_a_rank_takes_signals_after_its_first_step_and_ignores_them_at_its_end():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(of_rank=True) as signals:
        assert signal.getsignal(signal.SIGTERM) is before
        assert not signals.stopped()
        signal.raise_signal(signal.SIGTERM)
        assert signals.stopped()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_signal_of_a_job_is_answered_by_the_handlers_before_it():
    noted = []
    signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    with StopSignals(of_rank=False):
        signal.raise_signal(signal.SIGTERM)
        assert noted == []
    StopSignals.end_again()
    assert noted == [signal.SIGTERM]
    StopSignals.end_again()
    assert noted == [signal.SIGTERM]


def test_after_the_closed_output_code_output_goes_nowhere(monkeypatch, tmp_path):
    kept = (tmp_path / "out").open("w+")
    with kept:
        monkeypatch.setattr(sys, "stdout", kept)
        assert closed_output_code() == EXIT_PIPE
        os.write(kept.fileno(), b"nobody reads this")
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.slow
def test_a_signal_stops_a_whole_sweep():
    words = ("train", "-m", "seed=1,2,3", "epochs=3000", "hydra.sweep.dir=sweep")
    with Command(*words) as command:
        wait_for(lambda: list(Path().glob("sweep/*/metrics.jsonl")), "steps")
        os.kill(command.pid, signal.SIGINT)
        assert command.wait().code == 130
    assert len([path for path in Path("sweep").iterdir() if path.is_dir()]) == 1


def test_a_rank_whose_launcher_has_died_ends_before_torch_is_imported():
    code = (
        "import sys, framework.cli.signals as signals; "
        "print('torch' in sys.modules, flush=True); signals.begin_rank('nowhere')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "False\n", "")
