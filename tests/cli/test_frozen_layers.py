"""Frozen layers, groups of parameters and schedules with a state: over ranks, and resumed."""

import json
import shutil
from pathlib import Path

import pytest

from framework.train.checkpoint import FOLDER
from tests.cli.command import losses, paceline

SHORT = ("epochs=1", "report_every=1", "sink=jsonl", "max_steps=6", "batch_size=32")
SAVED = ("checkpoint.every_steps=1", "checkpoint.keep=20")
THAW = 3
FROZEN = (
    *(f"freeze={{features.0: {THAW}, features.1: null}}", "schedule=constant", "optim=adamw"),
    *("optim.no_decay=[norm,bias]", "optim.groups=[{match: head, lr: 0.02}]", "ema_decay=0.9"),
)


def trained(name, *words):
    done = paceline("train", *SHORT, *words, f"hydra.run.dir=runs/{name}")
    assert done.code == 0, done.err
    return Path("runs", name)


def weights(run):
    return (run / FOLDER / "last.pt").read_bytes()


def resumed(run, step):
    """Resume a copy of a run that was killed after ``step``, and return the copy's path."""
    again = Path("runs", f"{run.name}-{step}")
    shutil.copytree(run, again)
    (again / "summary.json").unlink()
    for path in (again / FOLDER).glob("step-*.pt"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    done = paceline("train", f"resume={again}")
    assert done.code == 0, done.err
    return again


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="one process"),
        pytest.param(("parallel=ddp",), id="ddp", marks=pytest.mark.slow),
        pytest.param(("parallel=fsdp",), id="fsdp", marks=pytest.mark.slow),
    ],
)
def test_layers_thaw_and_a_resumed_run_has_the_same_bits(words):
    whole = trained("whole", *FROZEN, *SAVED, *words)
    if words:
        assert losses(whole) == pytest.approx(losses(trained("one", *FROZEN)), rel=1e-5)
    for step in (THAW - 1, THAW):
        assert weights(resumed(whole, step)) == weights(whole)


PLATEAU = ("schedule=plateau", "schedule.patience=0", "schedule.threshold=0.5", "validate_every=1")
STEPS = (
    *("schedule=null", "+schedule._target_=torch.optim.lr_scheduler.OneCycleLR"),
    *("+schedule.max_lr=0.1", "+schedule.total_steps=10"),
)


@pytest.mark.parametrize("words", [PLATEAU, STEPS], ids=["plateau", "torch"])
def test_a_schedule_with_a_state_resumes_with_the_same_bits(words):
    whole = trained("whole", *words, *SAVED)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len({line["lr"] for line in lines}) > 2
    assert weights(resumed(whole, 4)) == weights(whole)
