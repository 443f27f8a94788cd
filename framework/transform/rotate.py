"""Turned by a random number of quarter turns in training."""

from collections.abc import Sequence
from typing import final

import torch

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN, Transform

# Flip codes of 0 to 3 quarter turns counterclockwise.
CODES = (0, TURNED | UPSIDE_DOWN, MIRRORED | UPSIDE_DOWN, TURNED | MIRRORED)


@final
class Rotate(Transform):
    """``turns``: the numbers of quarter turns, counterclockwise, one of which is drawn."""

    num_draws = 1

    def __init__(self, turns: Sequence[int]) -> None:
        if not turns or any(type(turn) is not int or not 0 <= turn <= 3 for turn in turns):
            raise ValueError(f"turns = {turns} are not numbers of quarter turns, 0 to 3")
        self.turns = bool({1, 3} & set(turns))
        self._codes = torch.tensor([CODES[turn] for turn in turns])

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        windows = super().windows(sizes, draws)
        if draws is not None:
            windows[:, 4] = self._codes[(draws[:, 0].double() * len(self._codes)).long()]
        return windows
