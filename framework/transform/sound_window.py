"""A window of each sound, at a random place in training and in the middle outside."""

from typing import final

from torch import Tensor

from framework.contracts.data import Transform


@final
class SoundWindow(Transform):
    """A window of ``samples``. Only the window is decoded. Images stay whole."""

    num_draws = 1

    def __init__(self, samples: int) -> None:
        if samples < 1:
            raise ValueError(f"samples = {samples} is not at least 1")
        self.samples = samples

    def starts(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return where the windows begin: int64 [B]. A shorter sound begins at 0."""
        room = (lengths - self.samples).clamp(min=0)
        return room // 2 if draws is None else (draws[:, 0].double() * (room + 1)).long()
