"""ResNet-18, with a stem for large or small images. Source: He et al., "Deep residual learning"."""

from typing import final

import torch
from torch import Tensor, nn

from framework.errors import ConfigError


class _BasicBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inside)) + self.shortcut(x))


@final
class ResNet18(nn.Module):
    """float [B, in_channels, H, W] -> logits [B, num_classes].

    ``stem``: large (7x7 and pool, for 224x224) or small (3x3, for 32x32).
    """

    def __init__(self, in_channels: int, num_classes: int, stem: str) -> None:
        super().__init__()
        if stem == "large":
            conv = nn.Conv2d(in_channels, 64, 7, 2, padding=3, bias=False)
            pool = nn.MaxPool2d(3, 2, padding=1)
        elif stem == "small":
            conv = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
            pool = nn.Identity()
        else:
            fix = "choose large (224x224) or small (32x32)"
            raise ConfigError(112, f"model.stem = {stem}", "not a stem", fix)
        first = nn.Sequential(conv, nn.BatchNorm2d(64), nn.ReLU(inplace=True), pool)
        layers: list[nn.Module] = [first]
        for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
            layers += [_BasicBlock(before, after, stride), _BasicBlock(after, after, 1)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(512, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).flatten(1))
