"""A small U-Net that restores images by adding to them. Source: Ronneberger et al., "U-Net"."""

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn


def _block(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return two 3x3 convolutions with ReLU, without batch norm, which blurs restored images."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.ReLU(inplace=True),
    )


@final
class UNet(nn.Module):
    """float [B, channels, H, W] of any size -> the same shape.

    Before training it returns its input, since the last convolution starts at zero. ``width`` is
    the number of channels of the first level, doubled at each of ``depth`` further levels.
    """

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = _block(channels, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), _block(above, below))
            for above, below in pairwise(widths)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * above, above, 2, stride=2) for above in widths[:-1]
        )
        self.join = nn.ModuleList(_block(2 * above, above) for above in widths[:-1])
        self.last = nn.Conv2d(width, channels, 1)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        # every level halves the image: pad to a multiple, and cut the result
        step = 2 ** len(self.down)
        x = nn.functional.pad(image, (0, -width % step, 0, -height % step), mode="replicate")
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([up(x), levels.pop()], dim=1))
        return image + self.last(x)[:, :, :height, :width]
