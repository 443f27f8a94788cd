"""A small net that reads lines of text: convolutions over the picture, then along the line."""

from typing import final

import torch
from torch import Tensor, nn

HEIGHT = 32
DILATIONS = (1, 2, 4, 1)  # of the convolutions along the line
LEAST = 1e-4  # a variance that is added, so that an even picture does not divide by zero


class _Along(nn.Module):
    """A residual convolution along the line."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)

    def forward(self, x: Tensor, is_line: Tensor) -> Tensor:
        normal = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.glu(self.conv(normal * is_line), 1)


@final
class LinesNet(nn.Module):
    """uint8 [B, W, 32] and lengths int64 [B] -> logits [B, steps, num_symbols], steps int64 [B].

    A step is two columns of the picture. Each line is normalized. Neither the padding behind a line
    nor the other lines of its batch change its logits.
    """

    def __init__(self, num_symbols: int, width: int) -> None:
        super().__init__()
        along = 6 * width
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(1, width, 3, 2, padding=1),
                nn.Conv2d(width, 2 * width, 3, (2, 1), padding=1),
                nn.Conv2d(2 * width, 2 * width, 3, (2, 1), padding=1),
            ]
        )
        self.join = nn.Conv1d(2 * width * HEIGHT // 8, along, 1)
        self.along = nn.ModuleList(_Along(along, dilation) for dilation in DILATIONS)
        self.head = nn.Sequential(nn.LayerNorm(along), nn.Linear(along, num_symbols))

    def forward(self, image: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        x = _normal(image, length).transpose(1, 2)[:, None]
        steps = (length + 1) // 2
        is_line = _within(steps, (x.shape[-1] + 1) // 2)[:, None]
        for conv in self.convs:
            x = nn.functional.relu(conv(x)) * is_line[:, None]
        x = self.join(x.flatten(1, 2))
        for block in self.along:
            x = block(x, is_line)
        return self.head(x.transpose(1, 2)), steps


def _within(length: Tensor, width: int) -> Tensor:
    """Return which columns belong to each line, and are no padding: bool [B, width]."""
    return torch.arange(width, device=length.device) < length[:, None]


def _normal(image: Tensor, length: Tensor) -> Tensor:
    """Return lines of mean 0 and variance 1, with zeros behind: float32 [B, W, 32]."""
    pixels = image.float() / 255
    is_line = _within(length, image.shape[1])[:, :, None]
    count = (HEIGHT * length)[:, None, None]
    mean = (pixels * is_line).sum((1, 2), keepdim=True) / count
    pixels = (pixels - mean) * is_line
    variance = pixels.square().sum((1, 2), keepdim=True) / count
    return pixels / (variance + LEAST).sqrt()
