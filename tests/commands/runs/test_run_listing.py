import json
import os
import shutil

import pytest

from framework.commands.runs.run_listing import (
    read_listed,
    run_dirs,
)
from framework.system.run_dir import write_object
from tests.commands.runs.run_folders import make_run


def test_neither_links_nor_leftovers_nor_folders_inside_a_run_are_runs(tmp_path):
    path = make_run(tmp_path / "run")
    make_run(path / "checkpoints" / "inner")
    left = make_run(tmp_path / "run.tmp.host.1.abcd")
    os.symlink(path, tmp_path / "link")
    (tmp_path / "file").mkdir()
    os.symlink(path / "run.json", tmp_path / "file" / "run.json")
    assert list(run_dirs(tmp_path)) == [path]
    shutil.rmtree(left)


def test_copies_that_mlflow_made_are_no_runs(tmp_path):
    make_run(tmp_path / "mlruns" / "1" / f"{7:032x}" / "artifacts")
    path = make_run(tmp_path / "mine" / "artifacts")
    assert list(run_dirs(tmp_path)) == [path]


def test_a_run_has_steps_time_metrics_and_choices(tmp_path):
    overrides = ("optim.lr=0.1", "hydra.run.dir=x")
    run = read_listed(
        make_run(tmp_path / "run", overrides=overrides, config={"optim": {"lr": 0.1}})
    )
    assert (run.steps, run.time_s, run.best) == (8, 2.5, {"accuracy": 0.5})
    assert run.recorded.choices == {"optim.lr": "0.1"}
    assert run.recorded.config == {"optim.lr": 0.1}
    assert run.disk_bytes >= 5000


def test_a_run_without_an_end_has_the_last_reports_of_its_log(tmp_path):
    path = make_run(tmp_path / "run", code=None)
    lines = [
        {"step": 4, "epoch": 1, "split": "val", "loss": 0.5, "lr": 0.1},
        {"step": 4, "epoch": 1, "split": "val.noisy", "loss": 0.75, "lr": 0.1},
        {"step": 6, "epoch": 1, "split": "train", "loss": 0.25, "lr": 0.1},
    ]
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9')
    run = read_listed(path)
    assert (run.steps, run.best, run.val) == (6, {}, {"loss": 0.5, "noisy.loss": 0.75})


@pytest.mark.parametrize("name", ["run.json", "summary.json", "exit.json", "metrics.jsonl"])
def test_no_pipe_is_waited_for(tmp_path, name):
    path = make_run(tmp_path / "run")
    (path / name).unlink()
    os.mkfifo(path / name)
    read_listed(path)


@pytest.mark.parametrize(
    "facts",
    [
        {"started": ["\x1b[2J"], "overrides": "x"},
        {"started": 7, "overrides": [1, None, {"a": "=\x1b[31m"}]},
        {"started": "9999-99-99T99:99:99+0000", "overrides": ["\x1b]0;x\x07=1"]},
    ],
)
def test_hostile_facts_are_shown_without_commands_for_the_terminal(tmp_path, facts):
    path = make_run(tmp_path / "run")
    write_object(path / "run.json", facts)
    summary = {"steps": 1e400, "wall_s": -1, "best": {"\x1b[1m": 1, "a": "b"}}
    write_object(path / "summary.json", summary)
    run = read_listed(path)
    text = f"{run.started}{run.recorded.choices}{list(run.best)}"
    assert "\x1b" not in text
