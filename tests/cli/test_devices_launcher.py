"""Jobs of a sweep side by side on this machine: ``hydra/launcher=devices``."""

import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework.cli.devices_launcher import DeviceShare, shares
from framework.errors import ConfigError
from framework.system.stopping import has_ended
from tests.cli.command import is_one_error_line, started
from tests.faults.forked import Command, wait_for

SIDE_BY_SIDE = ("train", "-m", "hydra/launcher=devices", "hydra.sweep.dir=sweep", "sink=[jsonl]")
ONE_CORE = (*SIDE_BY_SIDE, "hydra.launcher.cores=1", "hydra.launcher.gpus=0")
needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="jobs side by side need two cores"
)
PROBE = """
import json, os, time, torch
from framework.model.digits_net import DigitsCNN

class Net(DigitsCNN):
    def __init__(self, sleep_s=0, **options):
        super().__init__(**options)
        self.sleep_s = sleep_s
        seen = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
        seen += os.environ["CUDA_VISIBLE_DEVICES"], sorted(os.environ)
        with open(f"seen-{os.getpid()}", "w") as file:
            json.dump(seen, file)

    def forward(self, x):
        open(f"step-{os.getpid()}", "w").close()
        time.sleep(self.sleep_s)
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("num_jobs", "options", "expected"),
    [
        (9, (1, None, None), [((0, 1), "a"), ((2, 3), "b")]),
        (9, (None, None, None), [((0, 1), "a"), ((2, 3), "b")]),
        (9, (2, 1, None), [((0,), "ab")]),
        (9, (0, 1, None), [((0,), ""), ((1,), ""), ((2,), ""), ((3,), "")]),
        (9, (0, 3, None), [((0, 1, 2), "")]),
        (9, (0, None, 2), [((0, 1), ""), ((2, 3), "")]),
        (3, (0, None, None), [((0,), ""), ((1,), ""), ((2,), "")]),
        (1, (None, None, None), [((0, 1, 2, 3), "a")]),
    ],
    ids=[
        *("a-gpu", "default", "two-gpus", "a-core", "three-cores", "two-jobs", "few-jobs"),
        "one-job",
    ],
)
def test_the_machine_is_divided_among_the_jobs(num_jobs, options, expected):
    named = dict(zip(("gpus", "cores", "jobs"), options, strict=True))
    divided = shares((0, 1, 2, 3), ("a", "b"), num_jobs, named)
    assert divided == [DeviceShare(cores, tuple(gpus)) for cores, gpus in expected]


@pytest.mark.parametrize(("gpus", "cores"), [(3, None), (0, 5)])
def test_more_than_the_machine_has_is_refused(gpus, cores):
    with pytest.raises(ConfigError, match=r"C128\]: hydra.launcher.(gpus = 3|cores = 5)"):
        shares((0, 1, 2, 3), ("a", "b"), 2, {"gpus": gpus, "cores": cores, "jobs": None})


def test_an_option_of_the_launcher_is_checked():
    done = started(*SIDE_BY_SIDE, "hydra.launcher.cores=0", "seed=1,2")
    assert is_one_error_line(done, "C101")
    assert not Path("sweep").exists()


@needs_two_cores
def test_each_job_sees_its_own_cores_and_prints_into_its_folder():
    Path("probe.py").write_text(PROBE)
    words = ("model._target_=probe.Net", "allow_targets=[probe]", "epochs=1", "seed=1,2,3")
    done = started(*ONE_CORE, *words, CUDA_VISIBLE_DEVICES="0", OMP_NUM_THREADS="7")
    assert done.code == 0, done.err
    seen = [json.loads(path.read_text()) for path in Path().glob("seen-*")]
    assert len(seen) == 3
    assert all(len(cores) == threads == 1 and not gpus for cores, threads, gpus, _ in seen)
    assert len({cores[0] for cores, *_ in seen}) == 2
    assert all("PACELINE_JOB" not in names for *_, names in seen)
    logs = [path.read_text() for path in sorted(Path("sweep").glob("*/job.log"))]
    assert all("val loss" in log for log in logs)
    facts = [json.loads(path.read_text()) for path in Path("sweep").glob("*/run.json")]
    assert [fact["machine"]["num_cores"] for fact in facts] == [1, 1, 1]
    assert "report: " in done.out
    assert done.out.count("val loss") == 3  # in the table
    assert done.err.count("finished (") == 3


def test_a_job_that_fails_stops_no_other_and_is_named_at_the_end():
    words = ("optim.lr=1e9,0.01", "batch_size=0,64", "epochs=1", "hydra.launcher.jobs=1")
    done = started(*SIDE_BY_SIDE, *words)
    assert done.code == 2, done.err
    assert "3 of 4 jobs failed or stopped:" in done.err
    folders = [next(Path("sweep").glob(f"{number}-*")) for number in range(4)]
    assert "(sink=[jsonl] optim.lr=1000000000.0 batch_size=64 epochs=1): error[N101]" in done.err
    assert f"see {folders[1]}/job.log" in done.err
    assert "error[C101]: batch_size = 0" in (folders[0] / "job.log").read_text()
    assert json.loads((folders[3] / "exit.json").read_text())["code"] == 0


def test_a_sweep_of_a_recipe_allows_itself_nothing_side_by_side():
    Path("evil.py").write_text("open('ran', 'w').close()\n" + PROBE)
    Path("recipes").mkdir()
    params = '{allow_targets: "[evil]", seed: "1,2"}'
    Path("recipes/mine.yaml").write_text(
        "# @package _global_\ndefaults: [digits]\nmodel: {_target_: evil.Net}\n"
        f"hydra: {{mode: MULTIRUN, launcher: {{jobs: 1}}, sweeper: {{params: {params}}}}}\n"
    )
    done = started("--config-dir", ".", *SIDE_BY_SIDE, "recipes=mine")
    assert done.code == 2
    assert not Path("ran").exists()


def stepping():
    """Return the processes of the jobs whose model computes."""
    return [int(path.name.removeprefix("step-")) for path in Path().glob("step-*")]


@contextmanager
def sweep(step_s=3):
    """Yield a command with two jobs whose steps take so many seconds, and their processes."""
    Path("probe.py").write_text(PROBE)
    words = ("model._target_=probe.Net", f"+model.sleep_s={step_s}", "allow_targets=[probe]")
    words += ("seed=1,2,3",)
    with Command(*ONE_CORE, *words) as command:
        wait_for(lambda: len(stepping()) == 2, "steps")
        yield command, stepping()


def endings():
    return [json.loads(path.read_text()) for path in Path().glob("sweep/*/exit.json")]


@needs_two_cores
def test_a_signal_lets_every_job_save_and_starts_no_other():
    with sweep() as (command, jobs):
        os.kill(command.pid, signal.SIGTERM)
        done = command.wait()
        assert done.code == 75, done
        assert all(map(has_ended, jobs))
        assert [(end["code"], bool(end["checkpoint"])) for end in endings()] == [(75, True)] * 2
        assert "2 of 2 jobs failed or stopped:" in done.err
        assert done.err.count("state saved; continue with: paceline train resume=") >= 2


@needs_two_cores
def test_a_second_signal_ends_every_job_at_once():
    with sweep(30) as (command, jobs):
        os.kill(command.pid, signal.SIGINT)
        time.sleep(1.3)
        os.kill(command.pid, signal.SIGINT)
        assert command.wait().code == 130
        assert all(map(has_ended, jobs))
        assert [(end["code"], end["checkpoint"]) for end in endings()] == [(143, None)] * 2


@needs_two_cores
def test_no_job_outlives_a_launcher_that_is_killed():
    with sweep() as (command, jobs):
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: all(map(has_ended, jobs)), "end", 10.0)
