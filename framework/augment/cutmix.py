"""CutMix: a box of each image is another record's, and the label is blended by the box's area.

Source: Yun et al., "CutMix: regularization strategy to train strong classifiers with localizable features".
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.augment.curve import beta
from framework.augment.flip import chance
from framework.augment.labels import moving
from framework.augment.mixup import as_numbers, blended, partner
from framework.augment.normalize import Fields, fields_of
from framework.contracts.batch import Batch


def inside(start: Tensor, stop: Tensor, length: int) -> Tensor:
    """Whether each place along one side is within start..stop of its record: bool [B, length]."""
    places = torch.arange(length, device=start.device)
    return (places >= start.view(-1, 1)) & (places < stop.view(-1, 1))


@final
class CutMix:
    """Keys as in Mixup, whose docstring says what ranks change; pixels keep their kind. The box's center is anywhere, and what of it
    lies outside is cut off, as torchvision does; each record draws its own box. The same box of a label map is the partner's; where
    ``target`` is a label map, nothing else is done to it.
    """

    num_draws = 4
    exact = True

    def __init__(
        self, field: Fields, target: str, num_classes: int | None, alpha: float, probability: float
    ) -> None:
        self.fields, self.target, self.num_classes = fields_of(field), target, num_classes
        self.curve, self.probability = beta(alpha), chance("probability", probability)
        self.labels: tuple[str, ...] = ()

    def with_labels(self, labels: Sequence[str]) -> "CutMix":
        return moving(self, self.fields, labels)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        if draws is None:
            return dict(batch)
        found = dict(batch)
        height, width = batch[self.fields[0]].shape[-2:]
        box = self._box(draws, height, width)
        for name in (*self.fields, *self.labels):
            found[name] = torch.where(box, partner(batch[name]), batch[name])
        if self.target in self.labels:
            return found
        taken = box.sum((1, 2, 3)).to(torch.float32) * (
            1 / (height * width)
        )  # not divided: CUDA would multiply
        found[self.target] = blended(as_numbers(batch[self.target], self.num_classes), 1 - taken)
        return found

    def _box(self, draws: Tensor, height: int, width: int) -> Tensor:
        """What is the partner's: bool [B, 1, height, width]."""
        half = torch.where(
            draws[:, 0] < self.probability, 0.5 * (1 - self.curve(draws[:, 1])).sqrt(), 0.0
        )
        row, column = (draws[:, 2] * height).long(), (draws[:, 3] * width).long()
        tall, wide = (half * height).long(), (half * width).long()
        rows, columns = (
            inside(row - tall, row + tall, height),
            inside(column - wide, column + wide, width),
        )
        return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)
