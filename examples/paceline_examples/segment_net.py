"""A small U-Net that gives each pixel a class. Source: Ronneberger et al., "U-Net"."""

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from framework.model.digits_net import block


@final
class SegmentNet(nn.Module):
    """float [B, in_channels, H, W] of any size -> logits [B, num_classes, H, W].

    ``width`` is the number of channels of the first level, doubled at each of ``depth`` further
    levels.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = nn.Sequential(block(in_channels, width), block(width, width))
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), block(above, below), block(below, below))
            for above, below in pairwise(widths)
        )
        self.join = nn.ModuleList(block(above + below, above) for above, below in pairwise(widths))
        self.last = nn.Conv2d(width, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.first(image)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for join in reversed(self.join):
            above = levels.pop()
            x = nn.functional.interpolate(x, above.shape[2:], mode="nearest")
            x = join(torch.cat([x, above], dim=1))
        return self.last(x)
