"""What the user of planted ranks brought along: models, and a Dataset of records of all lengths."""

import os
import time

import numpy as np
import torch
from torch import Tensor, nn


class SleepyModel(nn.Module):
    """A classifier that rank 1 computes slowly."""

    def __init__(self, in_channels: int, num_classes: int, width: int, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 8, 8), nn.Flatten(), nn.LazyLinear(num_classes)
        )
        self.layers(torch.zeros(1, in_channels, 64, 64))

    def forward(self, image: Tensor) -> Tensor:
        if self.training and os.environ.get("RANK") == "1":
            time.sleep(self.seconds)
        return self.layers(image)


class WideModel(nn.Module):
    """A classifier with many weights, each of which is used once."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(in_channels * 1024, width), nn.ReLU()
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.layers(image))


class Lengths:
    """Records of which one in eight is long.

    So many neighbors have the same length.
    """

    def __init__(self, longest: int, neighbors: int) -> None:
        self.longest = longest
        self.neighbors = neighbors

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        rng = np.random.default_rng(index // self.neighbors)
        length = self.longest if rng.random() < 1 / 8 else self.longest // 20
        return np.zeros((length, 64), np.float32), index % 2


class OverPositions(nn.Module):
    """A classifier whose work grows with the length of its records."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image).mean(1)
