"""The net of the CIFAR-10 speed record.

Source: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024 (arXiv 2404.00498), after
hlb-CIFAR10.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

from framework.model.whitening import Whitening

SIZE = 2  # of the patches that the first layer whitens, in pixels
SCALE = 1 / 9  # keeps the first logits small
EPS = 1e-12  # of batch norm


def identity_conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first ``in_channels`` results are its input, as far as it has.

    The others begin as usual. A stack of such layers passes an image on from the first step, as
    residual connections do.
    """
    conv = nn.Conv2d(in_channels, out_channels, 3, padding="same", bias=False)
    nn.init.dirac_(conv.weight.data[:in_channels])
    return conv


def _norm(channels: int, momentum: float) -> nn.BatchNorm2d:
    """Return a batch norm without a learned scale."""
    norm = nn.BatchNorm2d(channels, EPS, momentum)
    norm.weight.requires_grad_(False)
    return norm


class _Block(nn.Module):
    """Two convolutions. The first one halves the image."""

    def __init__(self, in_channels: int, out_channels: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = identity_conv(in_channels, out_channels)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = _norm(out_channels, momentum)
        self.conv2 = identity_conv(out_channels, out_channels)
        self.norm2 = _norm(out_channels, momentum)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm1(self.pool(self.conv1(x))))
        return self.activation(self.norm2(self.conv2(x)))


@final
class Airbench(nn.Module):
    """float [B, in_channels, H, W] -> logits [B, num_classes].

    Attributes:
        widths: Channels of each block, of which each halves the image.
        norm_momentum: The share of a batch's statistics in batch norm's running ones.
        whiten_records: Training records to compute the first layer from.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        norm_momentum: float,
        whiten_records: int,
    ) -> None:
        super().__init__()
        self.whiten = Whitening(in_channels, SIZE, whiten_records)
        self.activation = nn.GELU()
        channels = (self.whiten.out_channels, *widths)
        self.blocks = nn.Sequential(
            *(_Block(before, after, norm_momentum) for before, after in pairwise(channels))
        )
        self.head = nn.Linear(channels[-1], num_classes, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.whiten(image)))
        pooled = nn.functional.max_pool2d(x, x.shape[2:]).flatten(1)
        return self.head(pooled) * SCALE
