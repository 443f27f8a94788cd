"""A first convolution whose filters whiten the patches of the training images.

Source: Page, "How to train your ResNet 8: bag of tricks"; the negatives, the size of patches and
``EPS``: hlb-CIFAR10; the bias: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024.
"""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

EPS = 5e-4  # is added to the eigenvalues, so that patches that hardly occur are not blown up


@final
class Whitening(nn.Conv2d):
    """float [B, C, H, W] -> [B, 2 * C * size**2, H - size + 1, W - size + 1].

    The filters are the eigenvectors of the patches' second moments, each over the root of its
    eigenvalue, and then their negatives, so that no sign is lost behind a rectifier. ``start_from``
    computes them. Until then they are random. They do not learn, but the bias does.

    Attributes:
        num_start_records: Training records to compute the filters from.
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
        filters = vectors * largest.sign() / (values + EPS).sqrt()
        filters = filters.T.flip(0).reshape(-1, *self.weight.shape[1:])  # the largest value first
        self.weight.copy_(torch.cat([filters, -filters]))


def second_moments(inputs: Iterable[Tensor], size: int) -> Tensor:
    """Return the mean product of each two pixels of a patch of ``size`` by ``size`` pixels.

    Args:
        inputs: Batches of images, float [B, C, H, W].
        size: Of a patch.

    Returns:
        float64 [C * size**2, C * size**2], on the CPU.
    """
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for images in inputs:
        patches = nn.functional.unfold(images.float(), size).transpose(1, 2).flatten(0, 1).double()
        total = total + (patches.T @ patches).cpu()
        count += len(patches)
    return total / count
