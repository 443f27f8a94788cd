"""Several transforms in turn, as one decision per record: one window, one size and one flip.

Each step's window is mapped back into the stored image, which is cut and scaled once. It is rounded
to whole pixels there, so the result differs from several passes by less than one of them.
"""

from collections.abc import Mapping, Sequence
from typing import final

import torch

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN, RecordFunction, Transform

BOTH_SIDES = MIRRORED | UPSIDE_DOWN


@final
class ComposeTransform(Transform):
    """Transforms that run in the order of ``parts``. A user's function may be the last.

    Each gets its part of a record's row of random numbers.
    """

    def __init__(self, parts: Mapping[str, Transform]) -> None:
        if not parts:
            raise ValueError("parts = {} changes nothing: name some, or choose transform=none")
        self.function: RecordFunction | None = None
        for name, part in parts.items():
            if not hasattr(part, "windows"):
                fix = f"add +transform@transform.parts.{name}=CHOICE"
                raise TypeError(f"parts.{name} = {part} is no transform: {fix}")
            if part.samples:
                what = f"parts.{name} cuts sounds, and the other parts cut images"
                raise ValueError(f"{what}: choose transform=sound_window alone")
            self.function = part.function
            if part.function is not None and name != list(parts)[-1]:
                what = f"parts.{name} calls a function"
                raise ValueError(f"{what}: put it last, behind all windows")
        self.parts = dict(parts)
        self.num_draws = sum(part.num_draws for part in parts.values())
        self.antialias = all(part.antialias for part in parts.values())
        self.size: tuple[int, int] | None = None
        scaling = ""  # a part that leaves images of several sizes
        for name, part in parts.items():
            if part.size is not None:
                self.size, scaling = part.size, ""
            elif part.scales:
                scaling = name
            elif self.size is not None and self.size[0] != self.size[1] and part.turns:
                what = f"parts.{name} turns images of {self.size[0]} x {self.size[1]} pixels"
                fix = "put it before the part that makes them so, or cut squares"
                raise ValueError(f"{what}: {fix}")
        if scaling:
            what = f"parts.{scaling} leaves images of several sizes"
            raise ValueError(f"{what}: add a part behind it that cuts one size")
        self.turns = any(part.turns for part in parts.values())
        cutting = [name for name, part in parts.items() if part.num_frames]
        if len(cutting) > 1:
            raise ValueError(f"parts {' and '.join(cutting)} both cut clips: leave one out")
        self.num_frames = sum(part.num_frames for part in parts.values())

    def frame_numbers(self, lengths: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        pairs = zip(self.parts.values(), self._own(draws), strict=True)
        part, own = next(pair for pair in pairs if pair[0].num_frames)
        return part.frame_numbers(lengths, own)

    def windows(self, sizes: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        # Which windows of the stored images the images are: top and left, height and width.
        corners, extents = torch.zeros(len(sizes), 2, dtype=torch.float64), sizes.double()
        now = sizes  # height and width after scaling and flipping
        flips = torch.zeros(len(sizes), dtype=torch.int64)
        for part, draw in zip(self.parts.values(), self._own(draws), strict=True):
            cut = part.windows(now, draw)
            begins, lengths, then = cut[:, :2], cut[:, 2:4], cut[:, 4]
            turned = (flips & TURNED).bool().unsqueeze(1)
            sides = torch.stack([flips & UPSIDE_DOWN, flips & MIRRORED], dim=1).bool()
            begins = torch.where(sides, now - begins - lengths, begins)
            ratio = extents / torch.where(turned, now.flip(1), now)
            corners = corners + torch.where(turned, begins.flip(1), begins) * ratio
            extents = torch.where(turned, lengths.flip(1), lengths) * ratio
            exchanged = (flips & MIRRORED) << 1 | (flips & UPSIDE_DOWN) >> 1
            kept = torch.where((then & TURNED) != 0, exchanged, flips & BOTH_SIDES)
            flips = (kept ^ (then & BOTH_SIDES)) | ((flips ^ then) & TURNED)
            if part.size is not None:
                now = torch.tensor([part.size]).expand_as(sizes)
            elif part.scales:
                now = part.scaled(now)
            else:
                now = lengths.where((then & TURNED).unsqueeze(1) == 0, lengths.flip(1))
        starts = torch.minimum(corners.round().long(), sizes - 1)
        ends = (corners + extents).round().long()
        ends = torch.minimum(torch.maximum(ends, starts + 1), sizes)
        return torch.cat([starts, ends - starts, flips.unsqueeze(1)], dim=1)

    def _own(self, draws: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        if draws is None:
            return [None] * len(self.parts)
        return draws.split([part.num_draws for part in self.parts.values()], dim=1)
