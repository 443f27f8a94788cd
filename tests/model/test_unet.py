import pytest
import torch

from framework.model.unet import UNet


@pytest.mark.parametrize(
    ("height", "width", "depth"), [(8, 8, 2), (13, 6, 2), (1, 5, 1), (17, 31, 3), (4, 4, 0)]
)
def test_images_of_any_size_keep_it(height, width, depth):
    assert UNet(3, 4, depth)(torch.randn(2, 3, height, width)).shape == (2, 3, height, width)


def test_an_untrained_one_gives_its_input_back():
    image = torch.rand(1, 1, 9, 9)
    assert torch.equal(UNet(1, 4, 2)(image), image)


def test_every_weight_gets_a_gradient_once_the_last_layer_moved():
    torch.manual_seed(0)
    model = UNet(3, 4, 2)
    torch.nn.init.normal_(model.last.weight)
    model(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_it_has_about_120_000_weights_for_photographs():
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in UNet(3, 16, 2).parameters()) == pytest.approx(
            117_000, rel=0.05
        )
