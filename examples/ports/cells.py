"""Somebody's segmentation: a U-Net and a Dice loss in plain PyTorch, as found on the web."""

import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Module):
    def __init__(self, in_ch: int, out_ch: int):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(in_ch, out_ch, 3, padding=1),
            nn.BatchNorm2d(out_ch),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_ch, out_ch, 3, padding=1),
            nn.BatchNorm2d(out_ch),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class CellNet(nn.Module):
    def __init__(self, n_channels: int, n_classes: int, width: int = 16):
        super().__init__()
        self.down1 = DoubleConv(n_channels, width)
        self.down2 = DoubleConv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = DoubleConv(2 * width, width)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        return self.outc(self.last(torch.cat([first, self.up(second)], dim=1)))


class DiceLoss(nn.Module):
    def __init__(self, smooth: float = 1.0):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        probs = logits.softmax(dim=1)
        onehot = F.one_hot(masks.squeeze(1).long(), logits.shape[1]).permute(0, 3, 1, 2).float()
        inter = (probs * onehot).sum(dim=(0, 2, 3))
        total = probs.sum(dim=(0, 2, 3)) + onehot.sum(dim=(0, 2, 3))
        return 1 - ((2 * inter + self.smooth) / (total + self.smooth)).mean()
