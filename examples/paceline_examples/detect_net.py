"""A small detector without anchors. Source: Zhou et al., "Objects as Points" (CenterNet)."""

import math
from typing import final

import torch
from torch import Tensor, nn

from framework.model.digits_net import block

STRIDE = 4  # pixels between two places of the result
RARE = 0.05  # the score of every place before training, since most places hold no center


@final
class DetectNet(nn.Module):
    """float [B, in_channels, H, W] -> [B, num_classes + 4, H / STRIDE, W / STRIDE], rounded up.

    Each place of the result has a logit per class, for the center of an object, and the logarithms
    of the distances from there to the left, upper, right and lower side of its box, in places.
    A place depends on 45 x 45 pixels.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            block(in_channels, width),
            block(width, 2 * width, stride=2),
            block(2 * width, 2 * width),
            block(2 * width, 4 * width, stride=2),
            *(block(4 * width, 4 * width) for _ in range(3)),
        )
        self.centers = nn.Sequential(
            block(4 * width, 2 * width), nn.Conv2d(2 * width, num_classes, 1)
        )
        self.sides = nn.Sequential(block(4 * width, 2 * width), nn.Conv2d(2 * width, 4, 1))
        nn.init.constant_(self.centers[-1].bias, math.log(RARE / (1 - RARE)))  # pyright: ignore[reportArgumentType]  # it has one

    def forward(self, image: Tensor) -> Tensor:
        features = self.features(image)
        return torch.cat([self.centers(features), self.sides(features)], dim=1)
