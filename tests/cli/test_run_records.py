import json
import os
import shutil
import socket

import pytest

from framework.cli.run_records import read_record, run_dirs
from framework.system import durable, run_dir
from tests.run_folders import age, make_run


def test_neither_links_nor_leftovers_nor_folders_inside_a_run_are_runs(tmp_path):
    path = make_run(tmp_path / "run" / "artifacts")
    make_run(path / "checkpoints" / "inner")
    make_run(tmp_path / "mlruns" / "1" / f"{7:032x}" / "artifacts")  # a copy that MLflow made
    left = make_run(tmp_path / "run.tmp.host.1.abcd")
    os.symlink(path, tmp_path / "link")
    (tmp_path / "file").mkdir()
    os.symlink(path / "run.json", tmp_path / "file" / "run.json")
    assert list(run_dirs(tmp_path)) == [path]
    shutil.rmtree(left)


def test_a_run_has_steps_time_metrics_and_choices(tmp_path):
    overrides = ("optim.lr=0.1", "hydra.run.dir=x")
    path = make_run(tmp_path / "run", overrides=overrides, config={"optim": {"lr": 0.1}})
    run = read_record(path)
    assert (run.steps, run.time_s, run.best) == (8, 2.5, {"accuracy": 0.5})
    assert run.choices == {"optim.lr": "0.1"}
    assert run.config == {"optim.lr": 0.1}
    assert run.disk_bytes >= 5000


def test_a_run_without_an_end_has_the_last_reports_of_its_log(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    lines = [
        {"step": 4, "epoch": 1, "split": "val", "loss": 0.5, "lr": 0.1},
        {"step": 4, "epoch": 1, "split": "val.noisy", "loss": 0.75, "lr": 0.1},
        {"step": 6, "epoch": 1, "split": "train", "loss": 0.25, "lr": 0.1},
    ]
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9')
    run = read_record(path)
    assert (run.steps, run.best, run.val) == (6, {}, {"loss": 0.5, "noisy.loss": 0.75})


def test_hostile_facts_are_shown_without_commands_for_the_terminal(tmp_path):
    path = make_run(tmp_path / "run")
    facts = {"started": ["\x1b[2J"], "overrides": ["\x1b]0;x\x07=1", 1, {"a": "=\x1b[31m"}]}
    run_dir.write_object(path / "run.json", facts)
    run_dir.write_object(path / "summary.json", {"steps": 7, "best": {"\x1b[1m": 1, "a": "b"}})
    run = read_record(path)
    assert "\x1b" not in f"{run.started}{run.choices}{list(run.best)}"


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "finished"), (130, "interrupted"), (75, "interrupted"), (6, "failed"), (1, "failed")],
)
def test_the_exit_code_says_how_a_run_ended(tmp_path, code, status):
    run = read_record(make_run(tmp_path / "run", code=code))
    assert (run.status, run.code) == (status, code)


def test_a_run_whose_lock_is_held_is_running(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    with durable.locked(path / "run.lock", lambda owner: None):
        run = read_record(path)
    assert run.status == "running"
    assert run.reason.startswith(f"process {os.getpid()} on {socket.gethostname()}")


def test_a_run_that_left_its_lock_and_no_end_was_killed(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    owner = f"process 1 on {socket.gethostname()} since 2026-11-25 03:00:00"
    (path / "run.lock").write_text(owner)
    assert read_record(path).status == "killed"


@pytest.mark.parametrize("lock", ["process 1 on elsewhere since 2026-11-25 03:00:00", ""])
@pytest.mark.parametrize(("seconds", "status"), [(60, "running"), (7200, "killed")])
def test_a_run_elsewhere_or_without_locks_counts_while_it_writes(tmp_path, lock, seconds, status):
    path = make_run(tmp_path / "run", code=None)
    if lock:
        (path / "run.lock").write_text(lock)
    age(path, seconds)
    assert read_record(path).status == status


@pytest.mark.parametrize("name", ["run.json", "exit.json", "summary.json"])
@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000], ids=["empty", "list", "deep"])
def test_a_run_with_a_damaged_file_is_listed_as_such(tmp_path, name, text):
    path = make_run(tmp_path / "run")
    (path / name).write_text(text)
    run = read_record(path)
    assert (run.status, run.reason) == ("damaged", f"{name} cannot be read")
