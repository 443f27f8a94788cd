"""Somebody's classifier: plain PyTorch that knows nothing of Paceline."""

import torch
from torch import nn


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class RosetteNet(nn.Module):
    def __init__(self, n_classes: int = 10, width: int = 32):
        super().__init__()
        self.stem = block(3, width)
        self.layer1 = block(width, 2 * width)
        self.layer2 = block(2 * width, 4 * width)
        self.fc = nn.Linear(4 * width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean(dim=(2, 3)))
