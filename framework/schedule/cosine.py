"""A linear warm-up, then half a cosine down. Source: Loshchilov and Hutter, "SGDR"."""

import math
from dataclasses import dataclass
from typing import final


@final
@dataclass
class Cosine:
    warmup_steps: int  # optimizer steps up to the full rate
    final: float  # the factor at the end

    def __call__(self, step: int, total_steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2
