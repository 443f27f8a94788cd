"""Random shift by padding and cropping, random mirror, then normalize: one gather for the whole batch, one draw per record."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.augment.normalize import normalized
from framework.batch import Batch


@final
class CropFlip:
    """``padding``: black pixels on each side before the crop to the old size; ``flip``: probability of a mirror.

    Outside training it only normalizes. Source: the usual CIFAR recipe of Lee et al., "Deeply-supervised nets".
    """

    num_draws = 3

    def __init__(self, field: str, padding: int, flip: float, mean: Sequence[float], std: Sequence[float]) -> None:
        self.field, self.padding, self.flip, self.mean, self.std = field, padding, flip, mean, std

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        image = batch[self.field]
        if draws is not None:
            image = self._changed(image, draws)
        return {**batch, self.field: normalized(image, self.mean, self.std)}

    def _changed(self, image: Tensor, draws: Tensor) -> Tensor:
        batch_size, _, height, width = image.shape
        offsets = (draws[:, :2] * (2 * self.padding + 1)).long()
        rows = offsets[:, :1] + torch.arange(height, device=image.device)
        columns = offsets[:, 1:] + torch.arange(width, device=image.device)
        columns = torch.where(draws[:, 2:] < self.flip, columns.flip(1), columns)
        padded = torch.nn.functional.pad(image, (self.padding,) * 4)
        records = torch.arange(batch_size, device=image.device).view(-1, 1, 1)
        # the channels stay a slice between index tensors, so they come out last
        return padded[records, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2).contiguous()
