"""The net of the CIFAR-10 speed record.

Source: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024 (arXiv 2404.00498). The
filters of the first layer are of Page, "How to train your ResNet 8: bag of tricks"; their
negatives, the size of patches and ``WHITENING_EPS`` of hlb-CIFAR10.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

SIZE = 2  # of the patches that the first layer whitens, in pixels
SCALE = 1 / 9  # keeps the first logits small
EPS = 1e-12  # of batch norm
WHITENING_EPS = 5e-4  # is added to the eigenvalues, so that rare patches are not blown up


@final
class Whitening(nn.Conv2d):
    """float [B, C, H, W] -> [B, 2 * C * size**2, H - size + 1, W - size + 1].

    The filters are the eigenvectors of the patches' second moments, each over the root of its
    eigenvalue, and then their negatives, so that no sign is lost behind a rectifier. ``start_from``
    computes them from ``num_start_records`` training records. Until then they are random. They do
    not learn, but the bias does.
    """

    def __init__(self, in_channels: int, size: int, num_start_records: int) -> None:
        super().__init__(in_channels, 2 * in_channels * size**2, size)
        self.num_start_records = num_start_records
        self.weight.requires_grad_(False)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def start_from(self, inputs: Iterable[Tensor]) -> None:
        """Compute the filters from batches of images [B, C, H, W]."""
        values, vectors = torch.linalg.eigh(second_moments(inputs, self.kernel_size[0]))
        # Eigenvectors have no sign of their own. With this one, every machine has the same filters.
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        filters = vectors * largest.sign() / (values + WHITENING_EPS).sqrt()
        filters = filters.T.flip(0).reshape(-1, *self.weight.shape[1:])  # the largest value first
        self.weight.copy_(torch.cat([filters, -filters]))


def second_moments(inputs: Iterable[Tensor], size: int) -> Tensor:
    """Return the mean product of each two pixels of a patch, float64 on the CPU."""
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for images in inputs:
        patches = nn.functional.unfold(images.float(), size).transpose(1, 2).flatten(0, 1).double()
        total = total + (patches.T @ patches).cpu()
        count += len(patches)
    return total / count


def identity_conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    """Return a 3x3 convolution whose first ``in_channels`` results are its input at the start."""
    conv = nn.Conv2d(in_channels, out_channels, 3, padding="same", bias=False)
    nn.init.dirac_(conv.weight.data[:in_channels])
    return conv


class _Block(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = identity_conv(in_channels, out_channels)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(out_channels, EPS, momentum)
        self.conv2 = identity_conv(out_channels, out_channels)
        self.norm2 = nn.BatchNorm2d(out_channels, EPS, momentum)
        for norm in (self.norm1, self.norm2):
            norm.weight.requires_grad_(False)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm1(self.pool(self.conv1(x))))
        return self.activation(self.norm2(self.conv2(x)))


@final
class Airbench(nn.Module):
    """float [B, in_channels, H, W] -> logits [B, num_classes]. ``conf/model`` has the options."""

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        norm_momentum: float,
        whiten_records: int,
    ) -> None:
        super().__init__()
        self.whiten = Whitening(in_channels, SIZE, whiten_records)
        self.activation = nn.GELU()
        channels = (self.whiten.out_channels, *widths)
        self.blocks = nn.Sequential(
            *(_Block(before, after, norm_momentum) for before, after in pairwise(channels))
        )
        self.head = nn.Linear(channels[-1], num_classes, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.whiten(image)))
        pooled = nn.functional.max_pool2d(x, x.shape[2:]).flatten(1)
        return self.head(pooled) * SCALE
