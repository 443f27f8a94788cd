"""The optimizer's own learning rate at every step."""

from typing import final


@final
class Constant:
    def __call__(self, step: int, total_steps: int) -> float:
        return 1.0
