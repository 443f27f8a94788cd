import pytest
import torch
from paceline_examples.segment_net import SegmentNet


@pytest.mark.parametrize(("height", "width"), [(64, 64), (37, 50), (8, 9)])
def test_every_pixel_of_an_image_of_any_size_has_logits(height, width):
    net = SegmentNet(3, 6, 4, 3).eval()
    assert net(torch.randn(2, 3, height, width)).shape == (2, 6, height, width)


def test_a_pixel_sees_far_beyond_its_neighbors():
    net, image = SegmentNet(3, 2, 4, 3).eval(), torch.zeros(1, 3, 65, 65, requires_grad=True)
    net(image + torch.randn_like(image))[0, 0, 32, 32].backward()
    rows = image.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert rows[-1] - rows[0] > 30


def test_every_weight_gets_a_gradient():
    net = SegmentNet(3, 4, 4, 2)
    net(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())
