"""Several transforms in turn, as one decision per record: one window, one size and one flip.

Each step sees images of the size that the steps before it leave. Its window is mapped back into the
stored image, which is cut and scaled once. The window is rounded to whole pixels of that image, so
the result differs from several passes by less than one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.data import (
    MIRRORED,
    TURNED,
    UPSIDE_DOWN,
    CutsSounds,
    CutsVideos,
    RecordFunction,
    Scales,
    Transform,
    cuts_videos,
    may_turn,
)


@dataclass
class _Virtual:
    """The images after some steps: which windows of the stored images they are.

    Attributes:
        corners: top and left of the windows: float64 [B, 2].
        extents: height and width of the windows: float64 [B, 2].
        sizes: height and width after scaling and flipping: int64 [B, 2].
        flips: int64 [B].
    """

    corners: Tensor
    extents: Tensor
    sizes: Tensor
    flips: Tensor

    def cut(self, windows: Tensor) -> None:
        """Take windows (int64 [B, 5]) of the images, and flip them."""
        turned = (self.flips & TURNED).bool().unsqueeze(1)
        corners, extents = windows[:, :2], windows[:, 2:4]
        bits = torch.stack([self.flips & UPSIDE_DOWN, self.flips & MIRRORED], dim=1).bool()
        corners = torch.where(bits, self.sizes - corners - extents, corners)
        ratio = self.extents / torch.where(turned, self.sizes.flip(1), self.sizes)
        self.corners = self.corners + torch.where(turned, corners.flip(1), corners) * ratio
        self.extents = torch.where(turned, extents.flip(1), extents) * ratio
        then = windows[:, 4]
        self.sizes = extents.where((then & TURNED).unsqueeze(1) == 0, extents.flip(1))
        self.flips = _combined(self.flips, then)

    def windows(self, stored: Tensor) -> Tensor:
        """Return the windows in whole pixels of the stored images (sizes int64 [B, 2])."""
        starts = torch.minimum(self.corners.round().long(), stored - 1)
        ends = (self.corners + self.extents).round().long()
        ends = torch.minimum(torch.maximum(ends, starts + 1), stored)
        return torch.cat([starts, ends - starts, self.flips.unsqueeze(1)], dim=1)


def _combined(first: Tensor, then: Tensor) -> Tensor:
    """Return the flip that is ``first`` and then ``then``."""
    exchanged = (first & MIRRORED) << 1 | (first & UPSIDE_DOWN) >> 1
    sides = torch.where((then & TURNED) != 0, exchanged, first & (MIRRORED | UPSIDE_DOWN))
    return (sides ^ (then & (MIRRORED | UPSIDE_DOWN))) | ((first ^ then) & TURNED)


@final
class ComposeTransform:
    """Transforms that run in the order of ``parts``. A user's function may be the last.

    Each gets its part of a record's row of random numbers.
    """

    def __init__(self, parts: Mapping[str, Transform]) -> None:
        if not parts:
            raise ValueError("parts = {} changes nothing: name some, or choose transform=none")
        for name, part in parts.items():
            if not hasattr(part, "windows"):
                fix = f"add +transform@transform.parts.{name}=CHOICE"
                raise TypeError(f"parts.{name} = {part} is no transform: {fix}")
            if isinstance(part, CutsSounds):
                what = f"parts.{name} cuts sounds, and the other parts cut images"
                text = f"{what}: choose transform=sound_window alone"
                raise ValueError(text)  # noqa: TRY004  # a value of the configuration
        self.parts = dict(parts)
        self.num_draws = sum(part.num_draws for part in parts.values())
        self.antialias = all(part.antialias for part in parts.values())
        self.function: RecordFunction | None = _function(parts)
        self.size: tuple[int, int] | None = _size(parts)
        self.turns = any(map(may_turn, parts.values()))
        cutting = [name for name, part in parts.items() if cuts_videos(part)]
        if len(cutting) > 1:
            raise ValueError(f"parts {' and '.join(cutting)} both cut clips: leave one out")
        self.num_frames = sum(part.num_frames for part in parts.values() if cuts_videos(part))

    def frame_numbers(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        pairs = zip(self.parts.values(), self._own(draws), strict=True)
        part, own = next(pair for pair in pairs if cuts_videos(pair[0]))
        assert isinstance(part, CutsVideos)
        return part.frame_numbers(lengths, own)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        nothing = torch.zeros(len(sizes), 2, dtype=torch.float64)
        images = _Virtual(
            nothing, sizes.double(), sizes, torch.zeros(len(sizes), dtype=torch.int64)
        )
        for part, draw in zip(self.parts.values(), self._own(draws), strict=True):
            before = images.sizes
            images.cut(part.windows(before, draw))
            if part.size is not None:
                images.sizes = torch.tensor([part.size]).expand_as(sizes)
            elif isinstance(part, Scales):
                images.sizes = part.scaled(before)
        return images.windows(sizes)

    def _own(self, draws: Tensor | None) -> Sequence[Tensor | None]:
        """Return the draws of each part."""
        if draws is None:
            return [None] * len(self.parts)
        return draws.split([part.num_draws for part in self.parts.values()], dim=1)


def _function(parts: Mapping[str, Transform]) -> Any:
    """Return the function of the last part. ValueError if another part has one."""
    *others, last = parts.items()
    for name, part in others:
        if part.function is not None:
            raise ValueError(f"parts.{name} calls a function: put it last, behind all windows")
    return last[1].function


def _size(parts: Mapping[str, Transform]) -> tuple[int, int] | None:
    """Return the size of every result, or None. ValueError if they would have several sizes."""
    size: tuple[int, int] | None = None
    scaling = ""  # a part that leaves images of several sizes
    for name, part in parts.items():
        if part.size is not None:
            size, scaling = part.size, ""
        elif isinstance(part, Scales):
            scaling = name
        elif size is not None and size[0] != size[1] and may_turn(part):
            what = f"parts.{name} turns images of {size[0]} x {size[1]} pixels"
            raise ValueError(f"{what}: put it before the part that makes them so, or cut squares")
    if scaling:
        what = f"parts.{scaling} leaves images of several sizes"
        raise ValueError(f"{what}: add a part behind it that cuts one size")
    return size
