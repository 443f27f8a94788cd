"""A clip of each video: consecutive frames, at a random place in training, else in the middle."""

from typing import final

import torch

from framework.contracts.data import Transform


@final
class VideoWindow(Transform):
    """A window of ``frames``, of which each is ``stride`` frames behind the one before.

    A video that ends before its window has its last frame repeated. Pictures stay whole.
    """

    num_draws = 1

    def __init__(self, frames: int, stride: int) -> None:
        if frames < 1 or stride < 1:
            raise ValueError(f"frames = {frames}, stride = {stride}: both must be at least 1")
        self.num_frames = frames
        self.stride = stride

    def frame_numbers(self, lengths: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        span = (self.num_frames - 1) * self.stride + 1
        room = (lengths - span).clamp(min=0)
        starts = room // 2 if draws is None else (draws[:, 0].double() * (room + 1)).long()
        numbers = starts.unsqueeze(1) + torch.arange(self.num_frames) * self.stride
        return torch.minimum(numbers, (lengths - 1).unsqueeze(1))
