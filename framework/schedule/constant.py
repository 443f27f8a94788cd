"""The optimizer's own rate, all the way."""

from typing import final


@final
class Constant:
    """Factor 1."""

    def __call__(self, step: int, total_steps: int) -> float:
        return 1.0
