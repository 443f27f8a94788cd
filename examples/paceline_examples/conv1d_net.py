"""A small net for waveforms: residual blocks of dilated convolutions."""

from typing import final

from torch import Tensor, nn


class _Block(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


@final
class Conv1dNet(nn.Module):
    """float [B, channels, T] -> the same shape.

    The ``depth`` blocks have dilations 1, 2, 4, ..., so that an output depends on
    2 ** (depth + 1) + 7 samples. The last convolution starts at zero, so that an untrained net
    returns its input.
    """

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 9, padding=4)
        self.blocks = nn.Sequential(*(_Block(width, 2**level) for level in range(depth)))
        self.last = nn.Conv1d(width, channels, 1)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, wave: Tensor) -> Tensor:
        return wave + self.last(self.blocks(self.first(wave)))
