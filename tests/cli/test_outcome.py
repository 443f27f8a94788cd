import errno
import json

import pytest
import torch

from framework.cli.outcome import RunOutcome, conclude, outcome_of
from framework.config.schema import AFTER_STEP
from framework.system.algorithms import choose_algorithms


def test_a_lost_worker_is_known_under_another_error_too(tmp_path):
    def broken():
        try:
            raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed.")
        except RuntimeError:
            raise KeyError("sum")  # noqa: B904  # as a library may that was interrupted by it

    outcome = outcome_of(broken, tmp_path, show_traceback=False)
    assert outcome.code == 5
    assert outcome.reason.startswith("error[R102]: workers: a worker process was lost")


def test_an_operator_without_a_repeatable_algorithm_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def action():
        choose_algorithms(torch.device("cpu"), deterministic=True)
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
        return RunOutcome(0, "")

    outcome = outcome_of(action, tmp_path, show_traceback=False)
    choose_algorithms(torch.device("cpu"), deterministic=False)
    assert outcome.code == 2
    told = "error[C361]: deterministic = true: put_ has no algorithm that repeats its results; use"
    assert outcome.reason.startswith(told)


def test_an_error_that_is_its_own_context_is_still_reported(tmp_path):
    def action():
        first, second = ValueError("first"), ValueError("second")
        first.__context__, second.__context__ = second, first
        raise first

    assert "ValueError: first" in outcome_of(action, tmp_path, show_traceback=False).reason


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 5, "error[R104]: memory: used up"),
        (OSError(errno.ENOSPC, "full", "x"), 5, "error[R101]: x: cannot write: No space left"),
        (OSError(errno.EMFILE, "many"), 5, "error[R109]: ulimit -n: too many open files"),
        (RuntimeError("can't start new thread"), 5, "error[R110]: threads"),
        (RuntimeError("Connection closed by peer"), 7, "error[P103]: a rank"),
        (KeyboardInterrupt(), 130, "stopped at once; nothing was saved yet"),
    ],
)
def test_an_error_of_the_system_is_one_line(error, code, words, tmp_path):
    def action():
        raise error

    outcome = outcome_of(action, tmp_path, show_traceback=False)
    assert outcome.code == code
    assert words in outcome.reason


def test_an_error_says_after_which_step_it_came(tmp_path):
    def action():
        error = MemoryError()
        error.add_note(f"{AFTER_STEP}12")
        raise error

    assert outcome_of(action, tmp_path, show_traceback=False).step == 12


def test_the_end_of_a_run_is_written_and_printed(tmp_path, capsys):
    assert conclude(RunOutcome(5, "error[R104]: memory"), tmp_path, short=False) == 5
    assert json.loads((tmp_path / "exit.json").read_text())["code"] == 5
    assert capsys.readouterr().err == "error[R104]: memory\n"
