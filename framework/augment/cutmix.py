"""A box of each image is another record's, and labels are blended by area."""

from typing import final

import torch
from torch import Tensor

from framework.augment.mixup import BlendedTarget, partner
from framework.augment.normalize import check_pictures
from framework.contracts.batch import Batch


def inside(start: Tensor, stop: Tensor, length: int) -> Tensor:
    """Return whether each place of a side is within start..stop of its record: bool [B, length]."""
    places = torch.arange(length, device=start.device)
    return (places >= start.view(-1, 1)) & (places < stop.view(-1, 1))


@final
class CutMix(BlendedTarget):
    """Boxes of other records in training. Images keep their dtype.

    The center of a box is anywhere, and the box ends at the image's sides, as in torchvision. A
    label map takes the same box from the partner's. As the ``target``, it changes in nothing else.
    Source: Yun et al., "CutMix".
    """

    num_draws = 4

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        if draws is None:
            return result
        check_pictures(batch[self.fields[0]])
        height, width = batch[self.fields[0]].shape[-2:]
        half = 0.5 * (1 - self.curve(draws[:, 1])).sqrt()
        half = torch.where(draws[:, 0] < self.probability, half, 0.0)
        row = (draws[:, 2] * height).long()
        column = (draws[:, 3] * width).long()
        tall = (half * height).long()
        wide = (half * width).long()
        rows = inside(row - tall, row + tall, height)
        columns = inside(column - wide, column + wide, width)
        taken = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)  # from the partner
        for name in (*self.fields, *self.labels):
            result[name] = torch.where(taken, partner(batch[name]), batch[name])
        if self.target in self.labels:
            return result
        # a product, since CUDA would turn a division by a constant into one
        share = taken.sum((1, 2, 3)).to(torch.float32) * (1 / (height * width))
        result[self.target] = self.blended_target(batch, 1 - share)
        return result
