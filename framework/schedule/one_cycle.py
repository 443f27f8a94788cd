"""A line up to the full rate, then down. Source: Smith and Topin, "Super-convergence"."""

from dataclasses import dataclass
from typing import final


@final
@dataclass
class OneCycle:
    peak: float  # the share of all steps before the full rate
    start: float  # the factor at step 0
    final: float = 0.0  # the factor at the end

    def __call__(self, step: int, total_steps: int) -> float:
        top = max(1.0, self.peak * total_steps)
        if step < top:
            return self.start + (1 - self.start) * step / top
        left = max(0.0, (total_steps - step) / max(1.0, total_steps - top))
        return self.final + (1 - self.final) * left
