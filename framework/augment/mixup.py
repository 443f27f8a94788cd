"""Mixup: each image and its label is blended with another record's.

Shares are drawn by a table of the quantile function, made on the host in float64 and read with
linear interpolation, which rounds alike on every device. No sampler, logarithm or power does.
Source: Zhang et al., "mixup: beyond empirical risk minimization".
"""

from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from framework.augment.normalize import Fields, PixelAugment, fields_of, unit
from framework.contracts.batch import Batch
from framework.contracts.class_labels import IGNORE_INDEX, class_labels
from framework.contracts.data import chance
from framework.errors import ConfigError

POINTS = 4096  # a power of two splits a draw of 24 bits into index and rest without rounding


@final
class QuantileCurve:
    """A quantile function. ``values``: float64 [POINTS + 1], at 0, 1/POINTS, ..., 1."""

    def __init__(self, values: Tensor) -> None:
        values = values.to(torch.float32)
        self._tables = {torch.device("cpu"): (values[:-1], values.diff())}

    def __call__(self, draws: Tensor) -> Tensor:
        """Map uniform float32 in [0, 1) to float32 values on the same device."""
        if draws.device not in self._tables:
            values, steps = self._tables[torch.device("cpu")]
            self._tables[draws.device] = values.to(draws.device), steps.to(draws.device)
        values, steps = self._tables[draws.device]
        place = draws * POINTS
        index = place.long()
        return (place - index).mul_(steps[index]).add_(values[index])


def beta(alpha: float) -> QuantileCurve:
    """Return Beta(alpha, alpha), for an ``alpha`` above 0.

    The distribution function up to 1/2 is a sum of trapezoids over s = x ** min(alpha, 1), in
    which the density has no pole, scaled to 1/2 at 1/2. The other half is its mirror image.
    """
    if alpha <= 0:
        raise ValueError(f"alpha = {alpha} is not above 0")
    power = min(alpha, 1.0)
    s = torch.linspace(0, 0.5**power, 1 << 16, dtype=torch.float64)
    x = s ** (1 / power)
    density = x ** (alpha - power) * (1 - x) ** (alpha - 1)
    below = torch.cat([s.new_zeros(1), torch.cumulative_trapezoid(density, s)])
    below *= 0.5 / below[-1]
    wanted = torch.linspace(0, 0.5, POINTS // 2 + 1, dtype=torch.float64)
    upper = torch.searchsorted(below, wanted).clamp(1, len(below) - 1)
    rest = (wanted - below[upper - 1]) / (below[upper] - below[upper - 1]).clamp(min=1e-300)
    half = (s[upper - 1] + rest * (s[upper] - s[upper - 1])) ** (1 / power)
    return QuantileCurve(torch.cat([half, 1 - half[:-1].flip(0)]))


def partner(values: Tensor) -> Tensor:
    """Return the values of each record's partner: the record before it in the micro-batch."""
    return values.roll(1, 0)


def blended(values: Tensor, share: Tensor) -> Tensor:
    """Return ``share`` (float32 [B]) of each record's values, and the rest of its partner's."""
    share = share.view(-1, *[1] * (values.dim() - 1))
    return (values * share).add_(partner(values) * (1 - share))


class BlendedTarget(PixelAugment):
    """The keys of Mixup and CutMix, and how both blend a target.

    A record's partner is the record before it in its rank's part of the micro-batch. With another
    number of ranks or another accumulation, other pairs are blended, with the same shares, and the
    losses change. A rank that holds one record of a short last batch blends nothing.

    ``target`` has floats, or classes, which become shares of ``num_classes`` (float32 [B,
    num_classes]) but for the labels ``ignore_index``. Records are blended with ``probability``, by
    shares drawn from Beta(``alpha``, ``alpha``).
    """

    exact = True
    moves_pixels = True  # from one picture to another
    makes_floats = False  # from 0 to 1
    choice = ""  # the name of an augment that blends colors, too, which label maps do not have

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

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return a copy that moves ``labels``. ConfigError C193 if it blends colors."""
        if labels and self.choice:
            where = f"augment = {self.choice}, label map {', '.join(labels)}"
            what = "class numbers cannot be blended as the images are"
            raise ConfigError(193, where, what, "choose augment=cutmix")
        return super().with_labels(labels)

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
    choice = "mixup"

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = {name: unit(batch[name]) for name in self.fields}
        if draws is None:
            return {**batch, **images}
        share = torch.where(draws[:, 0] < self.probability, self.curve(draws[:, 1]), 1.0)
        images = {name: blended(image, share) for name, image in images.items()}
        return {**batch, **images, self.target: self.blended_target(batch, share)}
