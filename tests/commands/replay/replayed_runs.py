"""Runs whose every step is known, for the tests of replay."""

import json
import random
from pathlib import Path
from typing import NamedTuple

import torch

from framework.commands.replay.step_again import ReplayJob, replay_run
from framework.commands.replay.watched_steps import weights_digest
from framework.train.checkpoint import read_state, saved_steps
from tests.cli.command import paceline

SMALL = ("recipes=digits", "dataset=digits", "limit=60", "batch_size=12", "epochs=3")
EVERY_STEP = ("report_every=1", "checkpoint.every_steps=1", "checkpoint.keep=1000")


class KnownRun(NamedTuple):
    """A run, the loss of each step that it reported, and the weights after each step."""

    path: Path
    losses: dict[int, float]
    weights: dict[int, str]


def known_run(folder: Path, *words: str, name: str = "run") -> KnownRun:
    """Train a few steps on the digits, and keep the states of two steps only."""
    done = paceline("train", *SMALL, *EVERY_STEP, *words, f"hydra.run.dir={name}", cwd=folder)
    assert done.code in (0, 6), done.err
    run = folder / name
    states = saved_steps(run)
    weights = {step: weights_digest(read_state(path)["model"]) for step, path in states.items()}
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines if line["split"] == "train"}
    for step, path in states.items():
        if step not in (4, 9):
            path.unlink()
    return KnownRun(run, losses, weights)


def replayed(run: Path, step: int | str, allowed=(), say=lambda _: None):
    """Return what ``replay.json`` would hold of a step."""
    shown = []
    before = torch.get_num_threads()
    try:
        replay_run(
            ReplayJob(str(run), str(step)),
            allowed,
            say,
            lambda *_: None,
            lambda step: shown.append(step.summary),
        )
    finally:
        torch.set_num_threads(before)
    return shown[0]


def check_steps(known: KnownRun, count: int) -> None:
    """Replay so many random steps, and compare the loss and the bits of the weights."""
    for step in random.Random(0).choices(sorted(known.losses), k=count):
        own = replayed(known.path, step)
        assert own["means"]["loss"] == known.losses[step]
        assert own["weights"] == known.weights[step]
        assert not own["differing_reports"]
