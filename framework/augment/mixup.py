"""Mixup: each image and its label is blended with another record's.

Source: Zhang et al., "mixup: beyond empirical risk minimization".
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from framework.augment.curve import beta
from framework.augment.flip import chance
from framework.augment.normalize import Fields, fields_of, unit
from framework.contracts.batch import Batch
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


def as_numbers(target: Tensor, num_classes: int | None) -> Tensor:
    """Return a target that can be blended: classes become float32 [B, num_classes] of 0 and 1."""
    if target.is_floating_point():
        return target
    if num_classes is None:
        what = "is needed to blend a target of classes"
        raise ConfigError(133, "augment.num_classes = null", what, "set it as the model's")
    shares = torch.zeros(len(target), num_classes, device=target.device)
    return shares.scatter_(1, target.view(-1, 1), 1.0)


@final
class Mixup:
    """Blends of two records in training. Images become float32. It must be last in a composition.

    A record's partner is the record before it in its rank's part of the micro-batch. With another
    number of ranks or another accumulation, other pairs are blended, with the same shares, and the
    losses change. A rank that holds one record of a short last batch blends nothing.

    Attributes:
        field: The image's name in the batch, or several that are blended alike.
        target: Floats, or class numbers, which become shares of ``num_classes``
            (float32 [B, num_classes]). ``objective=classify`` takes both.
        num_classes: How many classes there are; None for a target of floats.
        alpha: Each record draws its share from Beta(alpha, alpha).
        probability: Probability that a record is blended at all.

    """

    num_draws = 2
    exact = True

    def __init__(
        self, field: Fields, target: str, num_classes: int | None, alpha: float, probability: float
    ) -> None:
        self.fields = fields_of(field)
        self.target = target
        self.num_classes = num_classes
        self.curve = beta(alpha)
        self.probability = chance("probability", probability)

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
        target = blended(as_numbers(batch[self.target], self.num_classes), share)
        return {**batch, **images, self.target: target}
