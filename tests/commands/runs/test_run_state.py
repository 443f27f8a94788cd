import os
import socket

import pytest

from framework.commands.runs.run_listing import read_listed
from framework.system.lock import locked
from tests.commands.runs.run_folders import age, make_run


def state(path):
    return read_listed(path).state


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, "finished"),
        (130, "interrupted"),
        (75, "interrupted"),
        (143, "interrupted"),
        (6, "failed"),
        (1, "failed"),
    ],
)
def test_the_exit_code_says_how_a_run_ended(tmp_path, code, status):
    assert state(make_run(tmp_path / "run", code=code))[:2] == (status, code)


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    with locked(path / "run.lock", lambda owner: None):
        status, _, owner = state(path)
    assert status == "running"
    assert owner.startswith(f"process {os.getpid()} on {socket.gethostname()}")


def test_a_run_that_left_its_lock_and_no_end_was_killed(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    owner = f"process 1 on {socket.gethostname()} since 2026-11-25 03:00:00"
    (path / "run.lock").write_text(owner)
    assert state(path).status == "killed"


@pytest.mark.parametrize(("seconds", "status"), [(60, "running"), (7200, "killed")])
def test_a_lock_of_another_host_counts_while_the_run_writes(tmp_path, seconds, status):
    path = make_run(tmp_path / "run", code=None)
    (path / "run.lock").write_text("process 1 on elsewhere since 2026-11-25 03:00:00\n")
    age(path, seconds)
    assert state(path).status == status


@pytest.mark.parametrize(("seconds", "status"), [(60, "running"), (7200, "killed")])
def test_without_locks_a_run_without_an_end_counts_while_it_writes(tmp_path, seconds, status):
    path = make_run(tmp_path / "run", code=None)
    age(path, seconds)
    assert state(path).status == status


@pytest.mark.parametrize("name", ["run.json", "exit.json", "summary.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\0"])
def test_a_run_with_a_damaged_file_is_listed_as_such(tmp_path, name, text):
    path = make_run(tmp_path / "run")
    (path / name).write_text(text)
    assert state(path)[::2] == ("damaged", f"{name} cannot be read")
