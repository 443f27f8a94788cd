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
    ] == [16, 32, 32, 64, 64]


@pytest.mark.parametrize("size", [16, 40, 125])
def test_logits_of_images_of_its_size(size):
    assert ChipsNet(3, 2, size, 0.5)(torch.rand(2, 3, size, size)).shape == (2, 2)
