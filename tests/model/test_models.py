"""Models: shapes, first weights, and what a GPU repeats."""

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.model.airbench import (
    SCALE,
    WHITENING_EPS,
    Airbench,
    Whitening,
    identity_conv,
    second_moments,
)
from framework.model.digits_net import DigitsCNN
from framework.model.resnet9 import ResNet9
from framework.model.resnet18 import ResNet18
from framework.model.unet import UNet


def airbench(widths=(8, 16, 16)):
    return Airbench(3, 10, list(widths), norm_momentum=0.4, whiten_records=100)


@pytest.mark.parametrize(
    ("make", "num_parameters"),
    [
        pytest.param(lambda: ResNet18(3, 1000, "large"), 11_689_512, id="ResNet18"),
        pytest.param(lambda: airbench((64, 256, 256)), 1_973_000, id="airbench"),
        pytest.param(lambda: UNet(3, 16, 2), 117_000, id="UNet"),
        pytest.param(lambda: ResNet9(3, 10, 64), 6_568_000, id="ResNet9"),
    ],
)
def test_a_model_has_its_published_size(make, num_parameters):
    with torch.device("meta"):
        parameters = [own.numel() for own in make().parameters() if own.requires_grad]
    assert sum(parameters) == pytest.approx(num_parameters, rel=0.01)


@pytest.mark.parametrize("side", [16, 32, 40])
@pytest.mark.parametrize("make", [airbench, lambda: ResNet9(3, 10, 4)], ids=["airbench", "ResNet9"])
def test_small_images_have_logits(make, side):
    assert make()(torch.randn(2, 3, side, side)).shape == (2, 10)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 9), (9, 4)])
def test_a_convolution_of_airbench_begins_as_the_identity_on_its_first_channels(before, after):
    x = torch.randn(2, before, 6, 6)
    same = min(before, after)
    conv = identity_conv(before, after)
    torch.testing.assert_close(conv(x)[:, :same], x[:, :same])
    assert conv.weight[same:].abs().sum() > 0 or after == same


def test_batch_norm_of_airbench_learns_no_scale():
    norms = [module for module in airbench().modules() if isinstance(module, nn.BatchNorm2d)]
    learns = [(own.weight.requires_grad, own.bias.requires_grad) for own in norms]
    assert learns == 6 * [(False, True)]
    assert {own.momentum for own in norms} == {0.4}


def test_logits_are_scaled_down():
    x = torch.randn(1, 3, 32, 32)
    model = airbench().eval()
    outputs = []
    model.head.register_forward_hook(lambda module, inputs, result: outputs.append(result))
    assert torch.equal(model(x), outputs[0] * SCALE)
    assert SCALE == 1 / 9
    resnet = ResNet9(3, 10, 2).eval()
    assert torch.equal(resnet(x), resnet.head(resnet.features(x).amax((2, 3))) * 0.125)


@pytest.mark.parametrize(("stem", "side", "inside"), [("large", 224, 7), ("small", 32, 4)])
def test_the_last_features_of_resnet18_are_a_share_of_the_image(stem, side, inside):
    with torch.device("meta"):
        model, x = ResNet18(3, 10, stem), torch.randn(2, 3, side, side)
    assert model.features[:-1](x).shape == (2, 512, inside, inside)
    assert model(x).shape == (2, 10)


def test_an_unknown_stem_is_refused():
    what = r"^error\[C112\]: model.stem = tiny: not a stem; choose large"
    with pytest.raises(ConfigError, match=what):
        ResNet18(3, 10, "tiny")


@pytest.mark.parametrize(
    ("height", "width", "depth"), [(8, 8, 2), (1, 5, 1), (17, 31, 3), (4, 4, 0)]
)
def test_unet_keeps_the_size_of_images(height, width, depth):
    assert UNet(3, 4, depth)(torch.randn(2, 3, height, width)).shape == (2, 3, height, width)


def test_an_untrained_unet_returns_its_input():
    image = torch.rand(1, 1, 9, 9)
    assert torch.equal(UNet(1, 4, 2)(image), image)


def test_every_weight_of_unet_gets_a_gradient_once_the_last_layer_moved():
    torch.manual_seed(0)
    model = UNet(3, 4, 2)
    nn.init.normal_(model.last.weight)
    model(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def images(count=64, channels=3, side=9):
    """Return smooth images: neighbors and channels are alike, as in photographs."""
    torch.manual_seed(0)
    rough = torch.randn(count, channels, side, side)
    return nn.functional.avg_pool2d(rough + rough.mean(1, keepdim=True), 3, 1, 1) * 3


def started(given, channels=3, size=2):
    layer = Whitening(channels, size, 64)
    layer.start_from(given.split(20))
    return layer


def moments_of(layer, given):
    """Return the second moments of the first half of the layer's results, [N, N]."""
    results = layer(given)[:, : layer.out_channels // 2].transpose(0, 1).flatten(1).double()
    return (results @ results.T / results.shape[1]).detach()


def test_moments_are_those_of_all_patches():
    given = images(5, 2, 4)
    patches = nn.functional.unfold(given, 2).transpose(1, 2).flatten(0, 1).double()
    expected = patches.T @ patches / 45
    torch.testing.assert_close(second_moments(given.split(2), 2), expected)


@pytest.mark.parametrize(("channels", "size"), [(3, 2), (1, 3)])
def test_patches_come_out_uncorrelated_with_unit_moments(channels, size, monkeypatch):
    monkeypatch.setattr("framework.model.airbench.WHITENING_EPS", 0.0)
    given = images(channels=channels)
    moments = moments_of(started(given, channels, size), given)
    torch.testing.assert_close(moments, torch.eye(len(moments)).double(), rtol=0, atol=1e-4)


def test_patterns_that_hardly_occur_are_not_amplified():
    given = images()
    values = torch.linalg.eigvalsh(second_moments([given], 2)).flip(0)
    expected = torch.diag(values / (values + WHITENING_EPS))
    torch.testing.assert_close(moments_of(started(given), given), expected, rtol=0, atol=1e-4)


def test_every_filter_has_its_negative_and_only_the_bias_learns():
    layer = started(images())
    first, second = layer.weight.chunk(2)
    assert layer.weight.shape == (24, 3, 2, 2)
    assert torch.equal(first, -second)
    layer(images()).square().sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.abs().sum() == 0
    assert layer.bias.grad.abs().sum() > 0


@pytest.mark.parametrize(("channels", "side"), [(1, 4), (1, 8), (3, 28)])
def test_logits_of_images_of_any_size_from_four(channels, side):
    assert DigitsCNN(channels, 7, 4)(torch.randn(2, channels, side, side)).shape == (2, 7)


def test_it_has_about_40_000_weights_for_digits():
    assert sum(
        parameter.numel() for parameter in DigitsCNN(1, 10, 32).parameters()
    ) == pytest.approx(40_000, rel=0.5)


def test_every_weight_gets_a_gradient():
    model = DigitsCNN(1, 10, 4)
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
