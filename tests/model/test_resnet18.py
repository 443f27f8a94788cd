import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.model.resnet18 import ResNet18


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_it_has_as_many_parameters_as_everybody_s():
    with torch.device("meta"):
        assert num_parameters(ResNet18(3, 1000, "large")) == 11_689_512


def test_the_small_stem_has_a_3x3_convolution_and_no_pool():
    with torch.device("meta"):
        model = ResNet18(3, 10, "small")
    stem = model.features[0]
    assert (stem[0].kernel_size, stem[0].stride) == ((3, 3), (1, 1))
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in stem)


@pytest.mark.parametrize(("stem", "side", "inside"), [("large", 224, 7), ("small", 32, 4)])
def test_its_last_features_are_a_thirty_second_or_an_eighth_of_the_image(stem, side, inside):
    with torch.device("meta"):
        model, x = ResNet18(3, 10, stem), torch.randn(2, 3, side, side)
    assert model.features[:-1](x).shape == (2, 512, inside, inside)
    assert model(x).shape == (2, 10)


def test_a_real_image_goes_through():
    assert torch.isfinite(ResNet18(1, 5, "small").eval()(torch.randn(1, 1, 32, 32))).all()


def test_another_stem_is_named():
    with pytest.raises(
        ConfigError, match=r"^error\[C112\]: model.stem = tiny: not a stem; choose large"
    ):
        ResNet18(3, 10, "tiny")
