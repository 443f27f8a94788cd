"""``paceline train`` as its users meet it: real commands, real processes, real signals."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig

from framework.commands.train.train import _check_start, _jobs_elsewhere, _search_value
from framework.errors import ConfigError
from framework.system.run_dir import read_json, write_object
from tests.cli.command import is_one_error_line, losses, paceline

SUMMARY = """
status reason steps epochs wall_s records_per_s val best bests test spans
peak_rss_bytes choices notes ranks slow_records tuning train_s validate_s run_steps
skipped_steps stages_s queue usage content effective records_per_epoch recompute test_data
"""
LINE = "step epoch split loss records_per_s wait_s copy_s forward_s backward_s optimizer_s"
LIMIT_S = 180  # longer than any of this takes on a busy machine: a hang


@pytest.mark.slow
def test_the_main_job_reaches_its_accuracy_and_leaves_its_files():
    done = paceline("train", "hydra.run.dir=run")
    run = Path("run")
    summary = read_json(run / "summary.json")
    assert done.code == 0
    assert summary["val"]["accuracy"] >= 0.97
    assert set(summary) == set(SUMMARY.split())
    assert set(summary["spans"]) == {"wait", "copy", "forward", "backward", "optimizer", "report"}
    assert list(summary["choices"].values()) == ["hdf5", "prefetch", "none", "fp32"]
    assert set(json.loads((run / "metrics.jsonl").read_text().splitlines()[0])) >= set(LINE.split())
    checkpoint = f"checkpoints/step-{summary['steps']:08}.pt"
    ended = {"code": 0, "reason": "finished", "rank": None, "checkpoint": checkpoint}
    assert read_json(run / "exit.json") == {**ended, "step": summary["steps"]}
    assert {"command", "versions", "git", "machine", "data"} <= set(read_json(run / "run.json"))
    assert all((run / name).exists() for name in ("config.yaml", "resolved.json", "tensorboard"))
    assert all(word in done.out for word in ("where the step time went", "share", "p50", "p90"))
    assert "run directory:" in done.out


def num_lines(path: Path) -> int:
    """Return the number of whole lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(*words: str) -> subprocess.Popen:
    """Start a long run, and return its process once it has reported."""
    command = [sys.executable, "-m", "framework", "train", "hydra.run.dir=run", "report_every=1"]
    process = subprocess.Popen(
        [*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + LIMIT_S
    while num_lines(Path("run/metrics.jsonl")) < 30:  # validations have lines too
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "no steps"
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGUSR1, 75)]
)
@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_a_signal_saves_and_says_how_to_resume(number, code, parallel):
    process = start("epochs=5000", f"parallel={parallel}")
    process.send_signal(number)
    assert process.wait(LIMIT_S) == code
    ended = read_json(Path("run/exit.json"))
    assert ended["code"] == code
    assert "resume=" in ended["reason"]
    assert Path("run", ended["checkpoint"]).exists()
    assert f"after step {ended['step']}, state saved" in ended["reason"]


@pytest.mark.slow
def test_torchrun_starts_ranks_of_one_run():
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "framework", "train", "parallel=ddp", "debug=tiny", "hydra.run.dir=run"]
    pipes = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, *launch, *words], check=False, **pipes)
    assert done.returncode == 0, done.stderr
    assert read_json(Path("run/summary.json"))["choices"]["parallel"] == "ddp"
    assert paceline("train", "debug=tiny", "hydra.run.dir=alone").code == 0
    assert losses(Path("run")) == pytest.approx(losses(Path("alone")), rel=1e-5)


def test_a_lost_rank_ends_the_run_in_one_line(tmp_path):
    (tmp_path / "lost.py").write_text(
        "import os, signal\nfrom framework.objective.classify import Classify\n"
        "class Dies:\n"
        "    def __init__(self): self.steps, self.inner = 0, Classify('image', 'label', 0.0)\n"
        "    def better(self, new, old): return True\n"
        "    def __call__(self, model, batch):\n"
        "        self.steps += 1\n"
        "        if self.steps == 5 and os.environ['RANK'] == '1': "
        "os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return self.inner(model, batch)\n"
    )
    (tmp_path / "objective").mkdir()
    (tmp_path / "objective" / "dies.yaml").write_text("# dies\n_target_: lost.Dies\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "d.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /objective: dies\n"
    )
    words = ["recipes=d", "allow_targets=[lost]", "parallel=ddp", "hydra.run.dir=run"]
    done = paceline("train", "--config-dir", ".", *words)
    assert done.code == 7
    assert is_one_error_line(done, "P102")
    assert "rank 1" in done.err
    ended = read_json(Path("run/exit.json"))
    assert (ended["code"], ended["rank"]) == (7, 1)


@pytest.mark.slow
def test_a_job_of_dali_has_a_process_of_its_own_in_a_sweep(tmp_path):
    (tmp_path / "lost.py").write_text(
        "import os, signal\nfrom framework.objective.classify import Classify\n"
        "class Dies(Classify):\n"
        "    def __init__(self, dies):\n"
        "        super().__init__('image', 'label', 0.0)\n"
        "        if dies: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "objective").mkdir()
    (tmp_path / "objective" / "dies.yaml").write_text("# dies\n_target_: lost.Dies\ndies: false\n")
    words = ["objective=dies", "objective.dies=true,false", "data=dali", "max_steps=2"]
    sweep = ["-m", "--config-dir", ".", "hydra.sweep.dir=sweep", "allow_targets=[lost]"]
    done = paceline("train", *sweep, *words)
    assert done.code == 7
    assert is_one_error_line(done, "P102")
    assert [read_json(path)["code"] for path in sorted(Path("sweep").glob("*/exit.json"))] == [7, 0]
    assert paceline("train", "data=dali", "max_steps=2", "hydra.run.dir=alone").code == 0
    assert losses(Path("alone")) == losses(next(Path("sweep").glob("1-*")))


def end_job(name: str) -> None:
    Path("sweep", name).mkdir(parents=True, exist_ok=True)
    write_object(Path("sweep", name, "exit.json"), {})


def test_jobs_that_ran_elsewhere_are_found_in_their_order():
    for name in ("10-lr=0.1", "2-lr=0.2", "0-lr=0.3"):
        end_job(name)
    Path("sweep/3-never-begun").mkdir()
    jobs = _jobs_elsewhere(["-m", "hydra.sweep.dir=sweep"], {})
    assert [job.run_dir.name for job in jobs] == ["0-lr=0.3", "2-lr=0.2", "10-lr=0.1"]
    assert _jobs_elsewhere(["-m"], {}) == []


def test_a_search_without_validation_data_is_refused():
    config = {"data": {"val": None}, "folds": None, "search_metric": "loss", "parallel": {}}
    _check_start({**config, "parallel": {"num_processes": 1}}, "basic", True)
    _check_start({**config, "folds": 5}, "optuna", True)
    with pytest.raises(ConfigError, match="C335"):
        _check_start(config, "optuna", True)


@pytest.mark.parametrize(("metric", "value"), [("loss", 0.5), ("noisy.loss", 0.7), ("f1", None)])
def test_a_search_finds_the_metric_of_the_first_set(tmp_path, monkeypatch, metric, value):
    best = {"clean.loss": 0.5, "noisy.loss": 0.7, "step": 3}
    write_object(tmp_path / "summary.json", {"best": best})
    hydra = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)))
    monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
    assert _search_value(SimpleNamespace(search_metric=metric)) == value
