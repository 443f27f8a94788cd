"""Other distributions from uniform numbers, by a table of the quantile function.

The table is made on the host in float64 and read with linear interpolation. Reading rounds once
per kernel, so a draw gives the same number on every device. No sampler, logarithm or power does.
"""

import math
from typing import final

import torch
from torch import Tensor

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


def log_uniform(low: float, high: float) -> QuantileCurve:
    """Return the distribution between ``low`` and ``high`` whose logarithm is uniform."""
    logarithms = torch.linspace(math.log(low), math.log(high), POINTS + 1, dtype=torch.float64)
    return QuantileCurve(logarithms.exp())


def beta(alpha: float) -> QuantileCurve:
    """Return Beta(alpha, alpha), for an ``alpha`` above 0.

    The distribution function up to 1/2 is a sum of trapezoids over s = x ** min(alpha, 1), in
    which the density has no pole. Scaling it to 1/2 at 1/2 avoids the gamma function. The other
    half is the mirror image.
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
