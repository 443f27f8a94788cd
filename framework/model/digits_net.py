"""A small CNN for 8x8 gray digits: about 40,000 weights, a second per epoch on one core."""

from typing import final

from torch import Tensor, nn


def block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 convolution with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


@final
class DigitsCNN(nn.Module):
    """float [B, in_channels, H, W], H and W at least 4 -> logits [B, num_classes]."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            block(in_channels, width),
            block(width, 2 * width, stride=2),
            block(2 * width, 2 * width),
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.features(image)
        height, width = x.shape[2:]
        size = (-(-height // 2), -(-width // 2))  # quarters of odd sizes overlap
        # unlike AdaptiveMaxPool2d, it repeats its gradients bit by bit on a GPU
        largest = nn.functional.max_pool2d(x, size, (height // 2, width // 2))
        return self.head(largest.flatten(1))
