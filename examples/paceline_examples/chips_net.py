"""The small CNN of a well-known article on training in minutes with several GPUs."""

from typing import final

from torch import Tensor, nn

CHANNELS = (16, 32, 32, 64, 64)


@final
class ChipsNet(nn.Module):
    """float [B, in_channels, image_size, image_size] -> logits [B, num_classes].

    Five 3x3 convolutions with ReLU, max pooling after all but the first; dropout, 128 features,
    classes. Images have at least 16 pixels a side.

    The article's library initializes weights by Glorot and Bengio. With the smaller weights of
    torch's default, nothing is learned for many epochs.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", 2010.
    """

    def __init__(self, in_channels: int, num_classes: int, image_size: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, out_channels in enumerate(CHANNELS):
            layers += [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)] if number else []
            in_channels = out_channels
        self.features = nn.Sequential(*layers)
        side = image_size // 16
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(CHANNELS[-1] * side * side, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)  # pyright: ignore[reportArgumentType]  # all of them have one

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).flatten(1))
