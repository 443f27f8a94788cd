"""Modules that set their first weights from training records."""

import torch
from torch import nn

from framework.objective.classify import Classify
from framework.train.weights import CHUNK, start_from_data

IMAGES = torch.randn(CHUNK + 30, 4, generator=torch.Generator().manual_seed(0))


class Center(nn.Module):
    """Subtracts the mean of what it gets."""

    def __init__(self, count):
        super().__init__()
        self.num_start_records = count
        self.register_buffer("mean", torch.zeros(4))
        self.chunks = []

    def start_from(self, inputs):
        given = list(inputs)
        self.chunks = [len(chunk) for chunk in given]
        self.mean.copy_(torch.cat(given).mean(0))

    def forward(self, x):
        return x - self.mean


def sample(count):
    return {"index": torch.arange(count), "x": IMAGES[:count], "label": torch.zeros(count).long()}


def start(model):
    def finish(batch):
        return {**batch, "x": batch["x"] + 1}

    start_from_data(model, Classify("x", "label", 0.0), sample, finish)


def test_modules_get_in_turn_what_reaches_them_in_chunks():
    model = nn.Sequential(Center(10), nn.Dropout(0.5), Center(len(IMAGES)))
    start(model)
    centered = IMAGES + 1 - (IMAGES[:10] + 1).mean(0)
    torch.testing.assert_close(model[2].mean, centered.mean(0))
    assert model[2].chunks == [CHUNK, 30]


def test_nothing_else_of_the_model_changes_or_runs():
    def never(module, inputs):
        raise AssertionError

    model = nn.Sequential(nn.BatchNorm1d(4), Center(10), nn.Linear(4, 4))
    model[2].register_forward_pre_hook(never)
    start(model)
    assert model.training
    assert int(model[0].num_batches_tracked) == 0
    assert not model[1]._forward_pre_hooks
