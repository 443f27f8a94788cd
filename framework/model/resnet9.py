"""A ResNet-9 for 32x32 images. Source: the net of Page, "How to train your ResNet"."""

from typing import final

from torch import Tensor, nn


def _block(in_channels: int, out_channels: int, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    ]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(_block(channels, channels), _block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


@final
class ResNet9(nn.Module):
    """float [B, in_channels, H, W] (at least 16) -> logits. ``width``: of the first layer."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _block(in_channels, width),
            _block(width, 2 * width, pool=True),
            _Residual(2 * width),
            _block(2 * width, 4 * width, pool=True),
            _block(4 * width, 8 * width, pool=True),
            _Residual(8 * width),
        )
        self.head = nn.Linear(8 * width, num_classes, bias=False)
        self.scale = 0.125  # keeps the first logits small; from the same source

    def forward(self, image: Tensor) -> Tensor:
        x = self.features(image)
        # unlike AdaptiveMaxPool2d, it repeats its gradients bit by bit on a GPU
        x = nn.functional.max_pool2d(x, x.shape[2:])
        return self.head(x.flatten(1)) * self.scale
