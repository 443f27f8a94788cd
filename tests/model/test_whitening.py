import pytest
import torch
from torch import nn

from framework.model import whitening
from framework.model.whitening import Whitening, second_moments


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
    patches = [
        given[image, :, y : y + 2, x : x + 2].flatten().double()
        for image in range(5)
        for y in range(3)
        for x in range(3)
    ]
    expected = torch.stack(patches).T @ torch.stack(patches) / 45
    torch.testing.assert_close(second_moments(given.split(2), 2), expected)


@pytest.mark.parametrize(("channels", "size"), [(3, 2), (1, 3)])
def test_patches_come_out_uncorrelated_with_unit_moments(channels, size, monkeypatch):
    monkeypatch.setattr(whitening, "EPS", 0.0)
    given = images(channels=channels)
    moments = moments_of(started(given, channels, size), given)
    torch.testing.assert_close(moments, torch.eye(len(moments)).double(), rtol=0, atol=1e-4)


def test_what_hardly_occurs_is_not_blown_up():
    given = images()
    values = torch.linalg.eigvalsh(second_moments([given], 2)).flip(0)
    moments = moments_of(started(given), given)
    expected = torch.diag(values / (values + whitening.EPS))
    torch.testing.assert_close(moments, expected, rtol=0, atol=1e-4)


def test_every_filter_has_its_negative():
    layer = started(images())
    first, second = layer.weight.chunk(2)
    assert layer.weight.shape == (24, 3, 2, 2)
    assert torch.equal(first, -second)


def test_filters_do_not_learn_and_the_bias_does():
    layer = started(images())
    layer(images()).square().sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.abs().sum() == 0
    assert layer.bias.grad.abs().sum() > 0


def test_a_patch_s_sign_does_not_decide_the_filters():
    given = images()
    torch.testing.assert_close(started(-given).weight, started(given).weight)


def test_how_images_come_in_batches_does_not_matter():
    given = images()
    layer = Whitening(3, 2, 64)
    layer.start_from([given])
    torch.testing.assert_close(layer.weight, started(given).weight)
