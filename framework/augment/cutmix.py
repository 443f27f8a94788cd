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


def boxes(image: Tensor, share: Tensor, centers: Tensor) -> Tensor:
    """Return which pixels of pictures [B, C, H, W] come from the partner: bool [B, 1, H, W].

    A box covers ``1 - share`` of a picture (float32 [B]), except for what lies outside. Its center
    is a share of height and width, uniform float32 [B, 2].
    """
    check_pictures(image)
    height, width = image.shape[-2:]
    half = 0.5 * (1 - share).sqrt()
    row = (centers[:, 0] * height).long()
    column = (centers[:, 1] * width).long()
    tall = (half * height).long()
    wide = (half * width).long()
    rows = inside(row - tall, row + tall, height)
    columns = inside(column - wide, column + wide, width)
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


def kept_share(taken: Tensor) -> Tensor:
    """Return the share of each picture outside its box ``taken``: float32 [B]."""
    height, width = taken.shape[-2:]
    # a product, since CUDA would turn a division by a constant into one
    return 1 - taken.sum((1, 2, 3)).to(torch.float32) * (1 / (height * width))


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
        share = torch.where(draws[:, 0] < self.probability, self.curve(draws[:, 1]), 1.0)
        taken = boxes(batch[self.fields[0]], share, draws[:, 2:])
        for name in (*self.fields, *self.labels):
            result[name] = torch.where(taken, partner(batch[name]), batch[name])
        if self.target not in self.labels:
            result[self.target] = self.blended_target(batch, kept_share(taken))
        return result
