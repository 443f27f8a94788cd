"""The optimizer's own learning rate at every step, after a linear warm-up."""

from dataclasses import dataclass
from typing import final


@final
@dataclass
class Constant:
    warmup_steps: int = 0  # optimizer steps up to the full rate

    def __call__(self, step: int, total_steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return 1.0
