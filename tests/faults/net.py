"""A model that draws from every random generator, and shows if a resume forgot one of them."""

import random

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A classifier [B, in_channels, 8, 8] with dropout and noise of Python, NumPy and torch."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * in_channels, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, num_classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        whim = (
            random.random()
            + random.gauss(0, 1)
            + np.random.rand()  # noqa: NPY002
            + np.random.randn()  # noqa: NPY002
            + torch.randn(()).item()
        )
        return self.layers(image) * (1 + 1e-3 * whim)
