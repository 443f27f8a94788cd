"""Runs whose every step is known, for the tests of replay."""

import json
import random
from pathlib import Path
from typing import NamedTuple

import torch

from framework.commands.replay.step_again import RunAgain
from framework.train.checkpoint import saved_steps
from tests.cli.command import paceline

SMALL = ("recipes=digits", "dataset=digits", "limit=60", "batch_size=12", "epochs=3")
EVERY_STEP = ("report_every=1", "checkpoint.every_steps=1", "checkpoint.keep=1000")


class KnownRun(NamedTuple):
    """A run, and the loss of each step that it reported."""

    path: Path
    losses: dict[int, float]


def known_run(folder: Path, *words: str, name: str = "run") -> KnownRun:
    """Train a few steps on the digits, and keep the states of two steps only."""
    done = paceline("train", *SMALL, *EVERY_STEP, *words, f"hydra.run.dir={name}", cwd=folder)
    assert done.code in (0, 6), done.err
    run = folder / name
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "train"}
    for step, path in saved_steps(run).items():
        if step not in (4, 9):
            path.unlink()
    return KnownRun(run, losses)


def replayed(run: Path, step: int | str):
    """Return what ``replay.json`` would hold of a step."""
    before = torch.get_num_threads()
    try:
        return RunAgain(run, str(step)).take()[0]
    finally:
        torch.set_num_threads(before)


def losses_of(summary: dict) -> dict[int, float]:
    """Return the loss of a replayed step and of its neighbors, by step."""
    return {own["step"]: own["means"]["loss"] for own in (summary, *summary["neighbors"])}


def check_steps(known: KnownRun, count: int) -> None:
    """Replay random steps and compare losses; the step after one tells of its weights."""
    for step in random.Random(0).choices(sorted(known.losses), k=count):
        own = replayed(known.path, step)
        assert losses_of(own).items() <= known.losses.items()
        assert not own["differing_reports"]
