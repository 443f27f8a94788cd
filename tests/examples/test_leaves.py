"""Somebody's distillation has with Paceline the losses and the accuracies of its plain loop."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from tests.cli.command import losses
from tests.examples import ported

ALLOWED = "allow_targets=[leaves]"
WORDS = ("--config-dir", ".", "recipes=leaves", "init=start.pth", "report_every=1", ALLOWED)


@pytest.fixture
def leaves():
    """Return the project's module; its images and weights lie in the test's own directory."""
    ported.copied(".")
    leaves = ported.imported("leaves")
    write_leaves()
    torch.manual_seed(0)
    torch.save(leaves.LeafNet().state_dict(), "start.pth")
    torch.save(trained_teacher(leaves).state_dict(), "teacher.pth")
    return leaves


def write_leaves():
    """Write images whose color says their class, with much noise."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 10)):
        for number, name in enumerate(("ash", "beech", "elm")):
            Path("leaves", split, name).mkdir(parents=True)
            for index in range(count + number):
                pixels = rng.integers(0, 200, (16, 16, 3), np.uint8)
                pixels[..., number] += rng.integers(0, 40, dtype=np.uint8)
                Image.fromarray(pixels).save(f"leaves/{split}/{name}/{index}.png")


def trained_teacher(leaves):
    images, labels = default_collate(list(leaves.Leaves("leaves/train")))
    teacher = leaves.LeafNet(width=24)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.3, momentum=0.9)
    for _ in range(15):
        optimizer.zero_grad()
        cross_entropy(teacher(images), labels).backward()
        optimizer.step()
    return teacher


def run(*words):
    ported.run(None, "train", "device=cpu", *words)


def accuracies(run_dir):
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line["accuracy"] for line in lines if line["split"] == "val"]


def test_losses_and_accuracies_of_the_average_are_those_of_the_plain_loop(leaves):
    run(*WORDS, "hydra.run.dir=run")
    expected, expected_accuracies = leaves.train("leaves", "start.pth", "teacher.pth")
    # Both losses are computed in another order of operations, and pixels are scaled in one step.
    assert losses(Path("run")) == pytest.approx(expected, rel=1e-5)
    assert accuracies(Path("run")) == expected_accuracies
    assert expected_accuracies[-1] > expected_accuracies[0]


@pytest.mark.slow
def test_a_resumed_one_has_the_same_losses_and_average(leaves):
    run(*WORDS, "hydra.run.dir=whole")
    run(*WORDS, "max_steps=10", "hydra.run.dir=parts")
    run("resume=parts", "max_steps=null", ALLOWED)
    assert losses(Path("parts")) == losses(Path("whole"))
    whole, parts = (torch.load(f"{name}/checkpoints/last.pt") for name in ("whole", "parts"))
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []
