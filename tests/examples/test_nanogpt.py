"""Somebody's GPT on a file of tokens learns with Paceline what it learns in its loop."""

import csv

import numpy as np
import pytest
import torch

from tests.cli.command import losses
from tests.examples import ported

pytestmark = pytest.mark.usefixtures("one_thread")
ALLOWED = "allow_targets=[nanogpt,blocks]"
WORDS = ported.words_of("nanogpt", ALLOWED)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with the project, two files of tokens, and weights to start from."""
    folder = ported.copied(tmp_path_factory.mktemp("gpt") / "project")
    rng = np.random.default_rng(0)
    for name, count in (("train.bin", 8000), ("val.bin", 1500)):
        tokens = rng.integers(1, 4, count).cumsum() % 65
        tokens.astype(np.uint16).tofile(folder / name)
    torch.manual_seed(0)
    torch.save(ported.imported("nanogpt", folder).GPT().state_dict(), folder / "start.pth")
    return folder


def test_it_has_the_losses_of_its_loop(project, monkeypatch):
    ported.run(project, *WORDS, "hydra.run.dir=run")
    monkeypatch.chdir(project)
    expected, estimates = ported.imported("nanogpt").train("start.pth")
    assert losses(project / "run") == expected
    assert losses(project / "run", "val") == estimates
    assert expected[-1] < 0.4 * expected[0]


@pytest.mark.slow
def test_a_resumed_one_learns_the_same_predicts_and_exports(project):
    ported.check_resumed(project, WORDS, 25, ALLOWED)
    dataset = "{_target_: blocks.Blocks, path: val.bin, num: 4}"
    given = ("input=dataset", f"input.dataset={dataset}", "input.fields=[x,y]")
    ported.run(project, "predict", "run=parts", *given, "output=scores.csv", ALLOWED)
    with open(project / "scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert f"value_{32 * 65 - 1}" in rows[0]
    ported.run(project, "export", "run=parts", "to=torch_export", "output=gpt.pt2", ALLOWED)
