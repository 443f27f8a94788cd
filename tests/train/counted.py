"""A batch of which only some records count, and what a plain loop learns of it."""

import torch
from torch import nn

from framework.objective.scores import IGNORE_INDEX
from tests.fakes import make_data, make_model

BATCH_SIZE = 10  # of 24 records: the last batch is short
EPOCHS = 3


def half_labelled():
    """Return 24 records of which every third, and all of the first five, have no label."""
    data = make_data(24)
    data["y"][::3] = IGNORE_INDEX
    data["y"][:5] = IGNORE_INDEX
    return data


def weights_of(model):
    return [value for own in model.parameters() for value in own.detach().flatten().tolist()]


def learned_by_a_plain_loop(clip_norm=None, data=None):
    """Return the weights after ``EPOCHS`` of whole batches in one process."""
    data, model = data or half_labelled(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for x, y in zip(*(values.split(BATCH_SIZE) for values in data.values()), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
    return weights_of(model)
