"""A small net that reads lines of text: convolutions over the picture, then along the line."""

from typing import final

from torch import Tensor, nn

from paceline_examples.within_length import normalized, within

HEIGHT = 32
DILATIONS = (1, 2, 4, 1)  # of the convolutions along the line


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
        x = normalized(image / 255, length).transpose(1, 2)[:, None]
        steps = (length + 1) // 2
        is_line = within(steps, (x.shape[-1] + 1) // 2)[:, None]
        for conv in self.convs:
            x = nn.functional.relu(conv(x)) * is_line[:, None]
        x = self.join(x.flatten(1, 2))
        for block in self.along:
            x = block(x, is_line)
        return self.head(x.transpose(1, 2)), steps
