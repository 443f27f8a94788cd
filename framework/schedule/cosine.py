"""A linear warm-up, then half a cosine down. Source: Loshchilov and Hutter, "SGDR"."""

import math
from typing import final


@final
class Cosine:
    """``warmup_steps``: optimizer steps up to the full rate; ``final``: the factor at the end."""

    def __init__(self, warmup_steps: int, final: float) -> None:
        self.warmup_steps = warmup_steps
        self.final = final

    def __call__(self, step: int, total_steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2
