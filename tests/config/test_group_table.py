import torch
from torch import nn

from framework.config.group_table import group_table
from framework.train.freeze import Freeze, freeze_layers
from framework.train.parameter_groups import parameter_groups


def small_model():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def table(model, freeze=None, kind=torch.optim.AdamW, **block):
    layers = None
    if freeze is not None:
        layers = Freeze(model, freeze_layers(model, freeze), freeze, lambda wrapped: wrapped)
    params = list(model.parameters())
    if block:
        params = parameter_groups(model, {"lr": 0.1, **block})
    text = group_table(model, kind(params, lr=0.1), layers)
    return text and [line.split() for line in text.splitlines()]


def test_one_group_without_frozen_layers_needs_no_table():
    assert table(small_model()) is None


def test_each_group_has_a_line():
    lines = table(small_model(), groups={"head": {"match": "1", "lr": 0.5, "weight_decay": 0.25}})
    assert lines == [
        ["group", "tensors", "parameters", "lr", "weight", "decay"],
        ["others", "2", "9", "0.1", "0.01"],
        ["head", "2", "4", "0.5", "0.25"],
    ]


def test_a_frozen_layer_has_a_line_with_its_step():
    lines = table(small_model(), freeze={"0.weight": 7, "0.bias": None})
    assert lines[1:] == [
        ["all", "1", "6", "0.1", "0.01", "step", "7"],
        ["all", "1", "3", "0.1", "0.01", "never"],
        ["all", "2", "4", "0.1", "0.01"],
    ]


def test_an_optimizer_without_weight_decay_has_no_column_for_it():
    lines = table(small_model(), kind=torch.optim.Rprop, groups=[{"match": "1"}])
    assert lines[0] == ["group", "tensors", "parameters", "lr"]
