import pytest
import torch

from framework.model.digits_net import DigitsCNN


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
