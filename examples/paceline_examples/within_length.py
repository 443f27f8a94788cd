"""Keep the padding of a batch out of what a net computes."""

import torch
from torch import Tensor

LEAST = 1e-4  # a variance that is added, so that constant sequences do not divide by zero


def within(length: Tensor, width: int) -> Tensor:
    """Return which places belong to each sequence, and are no padding: bool [B, width]."""
    return torch.arange(width, device=length.device) < length[:, None]


def normalized(x: Tensor, length: Tensor) -> Tensor:
    """Return sequences of mean 0 and variance 1 with zeros behind: float32 [B, W, C].

    Args:
        x: Padded sequences: float [B, W, C].
        length: How many of the W places belong to each: int64 [B].
    """
    x = x.float()
    is_inside = within(length, x.shape[1])[:, :, None]
    count = (x.shape[2] * length)[:, None, None]
    x = (x - (x * is_inside).sum((1, 2), keepdim=True) / count) * is_inside
    variance = x.square().sum((1, 2), keepdim=True) / count
    return x / (variance + LEAST).sqrt()
