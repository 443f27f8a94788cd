"""Objectives that own weights and state, through the command."""

import json
from pathlib import Path

from framework.train.checkpoint import FOLDER
from tests.cli.command import losses, paceline

OWN = """
import torch
from torch import nn
from framework import Outcome

class Head:
    '''A plain object: neither a module, nor what is built by its name.'''
    def __init__(self):
        self.layer = nn.Linear(10, 10)
        self.scales = [nn.Parameter(torch.ones(10))]

class Own:
    def __init__(self):
        self.head = Head()
        self.seen = 0.0

    def __call__(self, model, batch):
        logits = self.head.layer(model(batch["image"])) * self.head.scales[0]
        if model.training:
            self.seen += len(logits)
        loss = nn.functional.cross_entropy(logits, batch["label"])
        right = (logits.argmax(1) == batch["label"]).sum()
        return Outcome(loss * (1 + self.seen / 1000), {"accuracy": right})

    def better(self, new, old):
        return new["loss"] < old["loss"]
"""
WORDS = (
    *("objective=null", "+objective._target_=own.Own", "allow_targets=[own]", "epochs=1"),
    *(
        *("report_every=1", "sink=jsonl", "schedule=constant", "batch_size=32"),
        *("freeze={features.0: 2}", "optim=adamw"),
    ),
    *("optim.groups={mine: {match: objective, lr_factor: 10}}", "optim.no_decay=[bias]"),
)


def test_owned_weights_train_resume_and_are_evaluated():
    Path("own.py").write_text(OWN)
    done = paceline("train", *WORDS, "max_steps=6", "hydra.run.dir=runs/whole")
    assert done.code == 0, done.err
    table = [line.split() for line in done.err.splitlines()]
    assert ["mine", "2", "110", "0.01", "0.01"] in table
    done = paceline("train", *WORDS, "max_steps=3", "hydra.run.dir=runs/short")
    assert done.code == 0, done.err
    done = paceline("train", "resume=runs/short", "max_steps=6", "allow_targets=[own]")
    assert done.code == 0, done.err
    files = [Path("runs", name, FOLDER, "last.objective.pt") for name in ("whole", "short")]
    assert losses(Path("runs/whole")) == losses(Path("runs/short"))
    assert files[0].read_bytes() == files[1].read_bytes()
    done = paceline("evaluate", "runs/whole", "weights=last", "allow_targets=[own]", "output=out")
    assert done.code == 0, done.err
    means = json.loads(Path("out/evaluation.json").read_text())["sets"]["val"]["means"]
    assert means == json.loads(Path("runs/whole/summary.json").read_text())["val"]
