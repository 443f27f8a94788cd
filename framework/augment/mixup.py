"""Mixup: each image and its label blended with another record's.

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
    """For each record the one before it in the micro-batch; for the first, the last."""
    return values.roll(1, 0)


def blended(values: Tensor, share: Tensor) -> Tensor:
    """``share`` (float32 [B]) of each record's values and the rest of its partner's. Three roundings, the same on any device."""
    share = share.view(-1, *[1] * (values.dim() - 1))
    return (values * share).add_(partner(values) * (1 - share))


def as_numbers(target: Tensor, num_classes: int | None) -> Tensor:
    """A target that can be blended: classes (int64 [B]) become float32 [B, num_classes] of 0 and 1; floats stay."""
    if target.is_floating_point():
        return target
    if num_classes is None:
        raise ConfigError(
            133,
            "augment.num_classes = null",
            "is needed to blend a target of classes",
            "set it as the model's",
        )
    return torch.zeros(len(target), num_classes, device=target.device).scatter_(
        1, target.view(-1, 1), 1.0
    )


@final
class Mixup:
    """``field``: the image's name in the batch, or several, blended alike; ``target``: class numbers, which become shares of
    ``num_classes`` (float32 [B, num_classes]; objective=classify takes both), or floats; ``alpha``: of Beta(alpha, alpha), from which
    each record draws its own share; ``probability``: of being blended at all. Images become float32; last in a composition.

    A record's partner is the one before it in its rank's part of the micro-batch. So what a record is blended with depends on the
    batch: another number of ranks, or other accumulation, blends other pairs, and then the loss list is another. The shares are the
    same. A rank that holds one record of a last, short batch blends nothing. ConfigError C193 for data with label maps.
    """

    num_draws = 2
    exact = True

    def __init__(
        self, field: Fields, target: str, num_classes: int | None, alpha: float, probability: float
    ) -> None:
        self.fields, self.target, self.num_classes = fields_of(field), target, num_classes
        self.curve, self.probability = beta(alpha), chance("probability", probability)

    def with_labels(self, labels: Sequence[str]) -> "Mixup":
        if labels:
            where = f"augment = mixup, label map {', '.join(labels)}"
            raise ConfigError(
                193,
                where,
                "class numbers cannot be blended as the images are",
                "choose augment=cutmix",
            )
        return self

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        found = {**batch, **{name: unit(batch[name]) for name in self.fields}}
        if draws is None:
            return found
        share = torch.where(draws[:, 0] < self.probability, self.curve(draws[:, 1]), 1.0)
        target = as_numbers(batch[self.target], self.num_classes)
        return {
            **found,
            **{name: blended(found[name], share) for name in self.fields},
            self.target: blended(target, share),
        }
