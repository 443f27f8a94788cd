"""Mixup: each image and its label is blended with another record's.

Source: Zhang et al., "mixup: beyond empirical risk minimization".
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.augment.curve import beta
from framework.augment.normalize import Fields, fields_of, unit
from framework.contracts.batch import Batch
from framework.contracts.class_labels import IGNORE_INDEX, class_labels
from framework.contracts.data import AugmentTraits, chance
from framework.errors import ConfigError


def partner(values: Tensor) -> Tensor:
    """Return the values of each record's partner: the record before it in the micro-batch."""
    return values.roll(1, 0)


def blended(values: Tensor, share: Tensor) -> Tensor:
    """Return ``share`` (float32 [B]) of each record's values plus the rest of its partner's.

    Three roundings, the same on every device.
    """
    share = share.view(-1, *[1] * (values.dim() - 1))
    return (values * share).add_(partner(values) * (1 - share))


class BlendedTarget(AugmentTraits):
    """The keys of Mixup and CutMix, and how both blend a target.

    A record's partner is the record before it in its rank's part of the micro-batch. With another
    number of ranks or another accumulation, other pairs are blended, with the same shares, and the
    losses change. A rank that holds one record of a short last batch blends nothing.

    Attributes:
        target: Floats, or class numbers, which become shares of ``num_classes``
            (float32 [B, num_classes]). ``objective=classify`` takes both.
        num_classes: How many classes there are; None for a target of floats.
        alpha: Each record draws its share from Beta(alpha, alpha).
        probability: Probability that a record is blended at all.
        ignore_index: The number of labels that are no class, and so have no share.
    """

    exact = True
    moves_pixels = True  # from one picture to another
    makes_floats = False  # from 0 to 1

    def __init__(
        self,
        field: Fields,
        target: str,
        num_classes: int | None,
        alpha: float,
        probability: float,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        self.fields = fields_of(field)
        if self.makes_floats:
            self.scaled_fields = self.fields
        self.target = target
        self.num_classes = num_classes
        self.curve = beta(alpha)
        self.probability = chance("probability", probability)
        self.ignore_index = ignore_index
        self.labels: tuple[str, ...] = ()

    def blended_target(self, batch: Batch, share: Tensor) -> Tensor:
        """Return the blended target. Classes become float32 [B, num_classes]."""
        target = batch[self.target]
        if not target.is_floating_point():
            if self.num_classes is None:
                what = "is needed to blend a target of classes"
                raise ConfigError(133, "augment.num_classes = null", what, "set it as the model's")
            shares = torch.zeros(len(target), self.num_classes, device=target.device)
            labels = class_labels(target, 1).view(-1, 1)
            counted = labels != self.ignore_index
            target = shares.scatter_(1, torch.where(counted, labels, 0), counted.float())
        return blended(target, share)


@final
class Mixup(BlendedTarget):
    """Blends of two records in training; last in a composition. Images become float32."""

    num_draws = 2
    makes_floats = True

    def with_labels(self, labels: Sequence[str]) -> "Mixup":
        """Raise ConfigError C193 for data with label maps."""
        if labels:
            where = f"augment = mixup, label map {', '.join(labels)}"
            what = "class numbers cannot be blended as the images are"
            raise ConfigError(193, where, what, "choose augment=cutmix")
        return self

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {name: unit(batch[name]) for name in self.fields}
        if draws is None:
            return {**batch, **images}
        share = torch.where(draws[:, 0] < self.probability, self.curve(draws[:, 1]), 1.0)
        images = {name: blended(image, share) for name, image in images.items()}
        return {**batch, **images, self.target: self.blended_target(batch, share)}
