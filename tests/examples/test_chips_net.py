import pytest
import torch
from paceline_examples.chips_net import ChipsNet
from torch import nn


def test_its_convolutions_and_pools_are_the_article_s():
    kinds = [type(layer).__name__ for layer in ChipsNet(3, 2, 32, 0.5).features]
    conv, relu, pool = "Conv2d", "ReLU", "MaxPool2d"
    assert kinds == [conv, relu, *[conv, relu, pool] * 4]
    assert [
        layer.out_channels
        for layer in ChipsNet(3, 2, 32, 0.5).features
        if isinstance(layer, nn.Conv2d)
    ] == [
        16,
        32,
        32,
        64,
        64,
    ]


def test_its_head_drops_half_then_has_128_features():
    head = ChipsNet(3, 2, 500, 0.5).head
    assert (head[0].p, head[1].in_features, head[1].out_features, head[3].out_features) == (
        0.5,
        64 * 31 * 31,
        128,
        2,
    )


@pytest.mark.parametrize("size", [16, 40, 125])
def test_logits_of_images_of_its_size(size):
    assert ChipsNet(3, 2, size, 0.5)(torch.rand(2, 3, size, size)).shape == (2, 2)
