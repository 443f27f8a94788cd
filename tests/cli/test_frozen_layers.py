"""Frozen layers, groups of parameters and schedules with a state: as typed, over ranks, resumed."""

import json
import shutil
from pathlib import Path

import pytest

from framework.train.checkpoint import FOLDER
from tests.cli.command import losses, paceline

SHORT = ["epochs=1", "report_every=1", "sink=jsonl", "max_steps=8"]
THAW = 3
FROZEN = [
    f"freeze={{features.0: {THAW}, features.1: null}}",
    "schedule=constant",
    "optim=adamw",
    "optim.no_decay=[norm,bias]",
    "ema_decay=0.9",
]
PARALLEL = {
    "dp": ["parallel=dp"],
    "ddp": ["parallel=ddp"],
    "fsdp": ["parallel=fsdp"],
    "virtual": ["parallel=virtual", "parallel.virtual_ranks=4"],
}
SAVED = ["checkpoint.every_steps=1", "checkpoint.keep=20"]


def trained(name, *words):
    done = paceline("train", *SHORT, *words, f"hydra.run.dir=runs/{name}")
    assert done.code == 0, done.err
    return Path("runs", name)


def weights(run):
    return (run / FOLDER / "last.pt").read_bytes()


def resumed(run, step, *words):
    """Resume a copy of a run that was killed after ``step``, and return the copy's path."""
    again = Path("runs", f"{run.name}-{step}")
    shutil.copytree(run, again)
    (again / "summary.json").unlink()
    for path in (again / FOLDER).glob("step-*.pt"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    done = paceline("train", f"resume={again}", *words)
    assert done.code == 0, done.err
    return again


def test_a_table_of_the_groups_is_printed_before_the_first_step():
    words = ["max_steps=2", "optim.groups=[{match: head, lr: 0.5}]", *FROZEN]
    done = paceline("train", *SHORT[:3], *words)
    lines = done.err.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("group "))
    table = [line.split("  ") for line in lines[start : start + 9]]
    cells = [[cell.strip() for cell in row if cell] for row in table]
    assert cells[0] == ["group", "tensors", "parameters", "lr", "weight decay", "thaws at"]
    assert cells[1] == ["others", "1", "288", "0.001", "0.01", f"step {THAW}"]
    assert cells[-2:] == [
        ["head", "1", "2,560", "0.5", "0.01"],
        ["head, no decay", "1", "10", "0.5", "0"],
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("words", PARALLEL.values(), ids=PARALLEL)
def test_ranks_thaw_together_and_resume_with_the_same_bits(words):
    whole = trained("whole", *FROZEN, *SAVED, *words)
    if words != PARALLEL["virtual"]:  # whose parts have batch norms of their own
        assert losses(whole) == pytest.approx(losses(trained("one", *FROZEN)), rel=1e-5)
    for step in (THAW - 1, THAW, THAW + 1):
        assert weights(resumed(whole, step)) == weights(whole)


PLATEAU = ["schedule=plateau", "schedule.patience=0", "schedule.threshold=0.5", "validate_every=1"]
STEPS = [
    "schedule=null",
    "+schedule._target_=torch.optim.lr_scheduler.OneCycleLR",
    "+schedule.max_lr=0.1",
    "+schedule.total_steps=10",
]


@pytest.mark.parametrize("words", [PLATEAU, STEPS], ids=["plateau", "torch"])
def test_a_schedule_with_a_state_resumes_with_the_same_bits(words):
    whole = trained("whole", *words, *SAVED)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len({line["lr"] for line in lines}) > 2
    assert weights(resumed(whole, 4)) == weights(whole)


def test_validation_that_decides_the_rate_is_part_of_what_is_learned():
    whole = trained("whole", *PLATEAU, "max_steps=3")
    done = paceline("train", f"resume={whole}", "max_steps=4", "validate_every=2")
    assert done.code != 0
    assert "error[K105]" in done.err
    assert "validate_every (1, now 2)" in done.err


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["freeze=[stem]"], "C312", "the model has features, head"),
        (["freeze={head: 0}"], "C312", "freeze.head = 0"),
        (["freeze=stem"], "C312", "freeze = stem: must be a list of layers"),
        (["optim.no_decay=[nrom]"], "C310", "'nrom' matches no parameter"),
        (["optim.no_decay=norm"], "C310", "optim.no_decay = norm: must be norm, bias"),
        (["optim.layer_decay=2"], "C311", "optim.layer_decay = 2"),
        (["optim.groups=[{match: heads}]"], "C147", "optim.groups.0.match = heads"),
        (["optim.groups=[{match: head, lr: 1, lr_factor: 2}]"], "C147", "optim.groups.0.lr = 1"),
        (["optim.groups=[head]"], "C147", "optim.groups"),
        (["schedule=plateau", "data.val=null"], "C314", "no validation data"),
        (["schedule=cosine", "schedule.warmup_epochs=-1"], "C313", "schedule.warmup_epochs = -1"),
        (
            ["schedule=cosine", "schedule.warmup_epochs=1", "schedule.warmup_steps=3"],
            "C313",
            "exclude each other",
        ),
        (["+schedule.per=epoch"], "C106", "has no argument 'per'"),
        (["objective.class_weights=[1,2]"], "C316", "has 10 classes"),
        (["objective.class_weights=balance"], "C316", "objective.class_weights = balance"),
        (["objective=distill"], "C319", "objective.teacher = None"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(words, code, what):
    done = paceline("train", "epochs=1", *words)
    assert done.code != 0
    assert f"error[{code}]" in done.err
    assert what in done.last_line
