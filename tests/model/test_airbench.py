import pytest
import torch
from torch import nn

from framework.model.airbench import SCALE, Airbench, identity_conv


def small(**changes):
    words = {"widths": [8, 16, 16], "norm_momentum": 0.4, "whiten_records": 100, **changes}
    return Airbench(3, 10, **words)


@pytest.mark.parametrize("side", [16, 32, 40])
def test_logits_of_small_images(side):
    assert small()(torch.randn(2, 3, side, side)).shape == (2, 10)


def test_at_the_published_widths_it_has_the_published_size():
    model = Airbench(3, 10, [64, 256, 256], 0.4, 5000)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [24, 64, 64, 256, 256, 256, 256]
    sizes = [own.numel() for own in model.parameters() if own.requires_grad]
    assert 1_970_000 < sum(sizes) < 1_980_000


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 9), (9, 4)])
def test_a_convolution_begins_as_the_identity_on_its_first_channels(before, after):
    x = torch.randn(2, before, 6, 6)
    same = min(before, after)
    conv = identity_conv(before, after)
    torch.testing.assert_close(conv(x)[:, :same], x[:, :same])
    assert conv.weight[same:].abs().sum() > 0 or after == same


def test_batch_norm_learns_no_scale():
    norms = [module for module in small().modules() if isinstance(module, nn.BatchNorm2d)]
    assert [(own.weight.requires_grad, own.bias.requires_grad) for own in norms] == 6 * [
        (False, True)
    ]
    assert {own.momentum for own in norms} == {0.4}


def test_its_logits_are_scaled_down():
    model = small().eval()
    outputs = []
    model.head.register_forward_hook(lambda module, inputs, result: outputs.append(result))
    logits = model(torch.randn(1, 3, 32, 32))
    assert torch.equal(logits, outputs[0] * SCALE)
    assert SCALE == 1 / 9
