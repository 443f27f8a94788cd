import pytest
import torch
from paceline_examples.speedup_net import SpeedupNet
from torch import nn


def layers(model, kind):
    return [layer for layer in model.features if isinstance(layer, kind)]


def test_its_eight_blocks_have_the_tutorial_s_channels_and_strides():
    convs = layers(SpeedupNet(1, 10, 28), nn.Conv2d)
    assert [conv.out_channels for conv in convs] == [3, 3, 8, 8, 16, 16, 32, 32]
    assert [conv.in_channels for conv in convs] == [1, 3, 3, 8, 8, 16, 16, 32]
    assert [conv.stride for conv in convs] == [(2, 2), (1, 1)] * 4
    assert {conv.kernel_size for conv in convs} == {(3, 3)}


def test_each_block_pads_convolves_normalizes_and_leaks():
    kinds = [type(layer) for layer in SpeedupNet(1, 10, 28).features]
    assert kinds == [nn.ReflectionPad2d, nn.Conv2d, nn.BatchNorm2d, nn.LeakyReLU] * 8
    assert {layer.negative_slope for layer in layers(SpeedupNet(1, 10, 28), nn.LeakyReLU)} == {0.2}


def test_its_weights_are_drawn_by_xavier():
    torch.manual_seed(0)
    conv = layers(SpeedupNet(1, 10, 28), nn.Conv2d)[-1]
    expected = (2 / ((32 + 32) * 9)) ** 0.5
    assert float(conv.weight.detach().std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("side", [17, 28, 33])
def test_logits_of_images_of_its_size(side):
    assert SpeedupNet(1, 10, side)(torch.randn(2, 1, side, side)).shape == (2, 10)


def test_its_head_sees_two_by_two_pixels_of_a_digit():
    assert SpeedupNet(1, 10, 28).head.in_features == 32 * 2 * 2
