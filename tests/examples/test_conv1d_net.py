import pytest
import torch
from paceline_examples.conv1d_net import Conv1dNet


@pytest.mark.parametrize(("channels", "length"), [(1, 1), (1, 100), (2, 31)])
def test_waves_of_any_length_keep_it(channels, length):
    assert Conv1dNet(channels, 4, 3)(torch.randn(2, channels, length)).shape == (
        2,
        channels,
        length,
    )


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_each_sample_sees_as_many_as_is_said(depth):
    model, wave = (
        Conv1dNet(1, 4, depth).double(),
        torch.zeros(1, 1, 201, dtype=torch.double, requires_grad=True),
    )
    torch.nn.init.normal_(model.last.weight)
    for layer in model.modules():
        if isinstance(layer, torch.nn.ReLU):
            layer.register_forward_hook(
                lambda layer, inputs, output: output + inputs[0]
            )  # no gradient may be lost to a zero
            layer.inplace = False
    model(wave)[0, 0, 100].backward()
    seen = wave.grad[0, 0].nonzero().flatten()
    assert (int(seen[0]), int(seen[-1])) == (100 - 2**depth - 3, 100 + 2**depth + 3)


def test_every_weight_gets_a_gradient_once_the_last_layer_moved():
    model = Conv1dNet(1, 4, 3)
    torch.nn.init.normal_(model.last.weight)
    model(torch.randn(2, 1, 64)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
