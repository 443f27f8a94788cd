"""The net of a well-known speed-up tutorial: eight small convolution blocks for gray digits."""

from typing import final

from torch import Tensor, nn

CHANNELS = (3, 3, 8, 8, 16, 16, 32, 32)
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1)


@final
class SpeedupNet(nn.Module):
    """float [B, in_channels, image_size, image_size] -> logits [B, num_classes].

    Each block: reflection pad 1, 3x3 convolution (Xavier-normal), batch norm, leaky ReLU 0.2.
    Images have at least 17 pixels a side, since the strides divide by 16 and reflection needs two.
    """

    def __init__(self, in_channels: int, num_classes: int, image_size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        side = image_size
        for out_channels, stride in zip(CHANNELS, STRIDES, strict=True):
            conv = nn.Conv2d(in_channels, out_channels, 3, stride)
            nn.init.xavier_normal_(conv.weight)
            layers += [
                nn.ReflectionPad2d(1),
                conv,
                nn.BatchNorm2d(out_channels),
                nn.LeakyReLU(0.2, inplace=True),
            ]
            in_channels, side = out_channels, (side - 1) // stride + 1
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(in_channels * side * side, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).flatten(1))
