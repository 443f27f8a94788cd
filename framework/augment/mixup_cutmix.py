"""Mixup or CutMix, by chance, for each record."""

from typing import final

import torch
from torch import Tensor

from framework.augment.cutmix import boxes, kept_share
from framework.augment.mixup import BlendedTarget, beta, blended, partner
from framework.augment.normalize import Fields, unit
from framework.contracts import class_labels, data
from framework.contracts.batch import Batch


@final
class MixupCutMix(BlendedTarget):
    """Blends in training, each by Mixup or by CutMix. Images become float32, from 0 to 1.

    A record is blended with ``probability``, and then cut with ``cutmix_probability``, else mixed.
    Source: Wightman et al., "ResNet strikes back", 2021, which draws once for each batch.
    """

    num_draws = 5
    makes_floats = True
    choice = "mixup_cutmix"

    def __init__(
        self,
        field: Fields,
        target: str,
        num_classes: int | None,
        mixup_alpha: float,
        cutmix_alpha: float,
        probability: float,
        cutmix_probability: float,
        ignore_index: int = class_labels.IGNORE_INDEX,
    ) -> None:
        super().__init__(field, target, num_classes, mixup_alpha, probability, ignore_index)
        self.cutmix_curve = beta(cutmix_alpha)
        self.cutmix_probability = data.chance("cutmix_probability", cutmix_probability)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {name: unit(batch[name]) for name in self.fields}
        if draws is None:
            return {**batch, **images}
        blends = draws[:, 0] < self.probability
        cuts = draws[:, 1] < self.cutmix_probability
        whole = torch.where(blends & cuts, self.cutmix_curve(draws[:, 2]), 1.0)
        share = torch.where(blends & ~cuts, self.curve(draws[:, 2]), 1.0)
        taken = boxes(images[self.fields[0]], whole, draws[:, 3:])
        for name, image in images.items():
            cut = torch.where(taken, partner(image), image)
            images[name] = torch.where(cuts.view(-1, 1, 1, 1), cut, blended(image, share))
        target = self.blended_target(batch, share * kept_share(taken))  # one of the two is 1
        return {**batch, **images, self.target: target}
