import pytest
import torch
from torch import nn

from framework.model.resnet18 import ResNet18
from framework.parallel.batch_norm import HostSyncBatchNorm
from framework.parallel.exchange import Exchange
from framework.train.model_layers import (
    ModelBlocks,
    is_normalization,
    keeps_statistics,
    normalization_parameters,
)


class ScaledNormLinear(nn.Linear):
    """A layer with a matrix."""


@pytest.mark.parametrize(
    ("module", "normalizes", "keeps"),
    [
        (nn.BatchNorm2d(2), True, True),
        (HostSyncBatchNorm(nn.BatchNorm2d(2), Exchange()), True, True),
        (nn.BatchNorm2d(2, track_running_stats=False), True, False),
        (nn.BatchNorm2d(2, affine=False), True, True),
        (nn.LayerNorm(2), True, False),
        (nn.Linear(2, 2), False, False),
        (ScaledNormLinear(2, 2), False, False),
    ],
)
def test_modules_that_normalize_are_known(module, normalizes, keeps):
    assert (is_normalization(module), keeps_statistics(module)) == (normalizes, keeps)


def test_parameters_of_normalizations_have_their_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.LayerNorm(2)))
    assert normalization_parameters(model) == {"1.0.weight", "1.0.bias"}
    assert normalization_parameters(nn.LayerNorm(2)) == {"weight", "bias"}


class Transformer(nn.Module):
    """As in other libraries: an encoder with a list of layers, beside parameters of its own."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.patches = nn.Linear(2, 2)
        layer = nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(2), enable_nested_tensor=False)
        self.pool = nn.Identity()
        self.head = nn.Linear(2, 1)


class Inverted(nn.Module):
    """A block with sequences of layers inside."""

    def __init__(self):
        super().__init__()
        first, second = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
        self.inside = nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            Transformer(),
            ["patches", *(f"encoder.layers.{number}" for number in range(3)), "head"],
        ),
        (ResNet18(3, 10, "small"), [*(f"features.{number}" for number in range(9)), "head"]),
        (nn.Sequential(Inverted(), Inverted(), nn.Linear(2, 1)), ["0", "1", "2"]),
        (nn.Linear(2, 2), []),
    ],
)
def test_blocks_come_in_the_order_of_the_model(model, names):
    assert ModelBlocks(model).names == names


def test_every_parameter_has_a_block():
    for model in (Transformer(), ResNet18(3, 10, "small"), nn.Linear(2, 2)):
        blocks = ModelBlocks(model)
        assert blocks.number_of.keys() == dict(model.named_parameters()).keys()
        assert set(blocks.number_of.values()) == set(range(blocks.depth))


def test_a_norm_belongs_to_the_block_before_and_a_token_to_the_one_after():
    numbers = ModelBlocks(Transformer()).number_of
    assert numbers["token"] == numbers["patches.weight"] == 0
    assert numbers["encoder.norm.weight"] == numbers["encoder.layers.2.norm1.weight"] == 3
