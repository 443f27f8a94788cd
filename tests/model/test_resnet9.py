import pytest
import torch
from torch import nn

from framework.model.resnet9 import ResNet9


@pytest.mark.parametrize("side", [16, 32])
def test_logits_of_small_images(side):
    assert ResNet9(3, 10, 4)(torch.randn(2, 3, side, side)).shape == (2, 10)


def test_it_has_eight_convolutions_and_a_head():
    model = ResNet9(3, 10, 64)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [64, 128, 128, 128, 256, 512, 512, 512]
    assert (model.head.in_features, model.head.bias) == (512, None)


def test_a_residual_adds_to_what_came_in():
    residual = next(
        module for module in ResNet9(3, 10, 2).modules() if type(module).__name__ == "_Residual"
    )
    for parameter in residual.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(residual(x), x)


def test_its_logits_are_scaled_down():
    model = ResNet9(3, 10, 2).eval()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(model(x), model.head(model.features(x).amax((2, 3))) * 0.125)
