"""A small net that classifies spectrograms of different lengths: convolutions along the time."""

from typing import final

import torch
from torch import Tensor, nn

from paceline_examples.within_length import normalized, within

STRIDES = (1, 2, 2)


@final
class SoundsNet(nn.Module):
    """float [B, bands, frames] and lengths int64 [B] -> logits [B, num_classes].

    Each spectrogram is normalized. Mean and maximum over the frames of a sound decide, so neither
    the padding behind a sound nor the other sounds of its batch change its logits.
    """

    def __init__(self, bands: int, num_classes: int, width: int) -> None:
        super().__init__()
        channels = (bands, *[width] * len(STRIDES))
        self.convs = nn.ModuleList(
            nn.Conv1d(channels[number], width, 5, stride, padding=2)
            for number, stride in enumerate(STRIDES)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in STRIDES)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, spectrogram: Tensor, length: Tensor) -> Tensor:
        x = normalized(spectrogram.transpose(1, 2), length)
        for conv, norm, stride in zip(self.convs, self.norms, STRIDES, strict=True):
            x = nn.functional.relu(norm(conv(x.transpose(1, 2)).transpose(1, 2)))
            length = (length + stride - 1) // stride
            x = x * within(length, x.shape[1])[:, :, None]
        mean = x.sum(1) / length[:, None]
        return self.head(torch.cat([mean, x.amax(1)], 1))
