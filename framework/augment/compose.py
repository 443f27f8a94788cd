"""Several augments in turn, each with draws of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import (
    Augment,
    KnowsLabels,
    KnowsLayout,
    MovesPixels,
    NeedsUnitRange,
    Normalizes,
    alternating_draws,
    is_exact,
)


@final
class Compose:
    """Augments that run in the order of ``parts``.

    Each gets its part of a record's row of random numbers. A new last part therefore changes the
    numbers of the others unless it draws none.
    """

    def __init__(self, parts: Mapping[str, Augment]) -> None:
        if not parts:
            raise ValueError("parts = {} changes nothing: name some, or choose augment=none")
        for name, part in parts.items():
            if not callable(part):
                fix = f"add +augment@augment.parts.{name}=CHOICE"
                raise TypeError(f"parts.{name} = {part} is no augment: {fix}")
        _check_pixels(parts)
        self.parts = dict(parts)
        self.num_draws = sum(part.num_draws for part in parts.values())
        self.alternating = tuple(_alternating(parts))
        self.exact = all(map(is_exact, parts.values()))
        self.moves_pixels = any(
            isinstance(part, MovesPixels) and part.moves_pixels for part in parts.values()
        )

    def with_labels(self, labels: Sequence[str]) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, KnowsLabels):
                parts[name] = part.with_labels(labels)
        return Compose(parts)

    def with_layout(self, layout: torch.memory_format) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, KnowsLayout):
                parts[name] = part.with_layout(layout)
        return Compose(parts)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        start = 0
        for part in self.parts.values():
            own = draws
            if draws is not None:
                own = draws[:, start : start + part.num_draws]
            batch = part(batch, own)
            start += part.num_draws
        return dict(batch)


def _alternating(parts: Mapping[str, Augment]) -> Iterator[int]:
    """Yield the columns that alternate, counted over the draws of all parts."""
    start = 0
    for part in parts.values():
        for column in alternating_draws(part):
            yield start + column
        start += part.num_draws


def _check_pixels(parts: Mapping[str, Augment]) -> None:
    """Raise ValueError if a part needs pixels in [0, 1] after another part normalized them."""
    normalized: dict[str, str] = {}  # fields, and by which part
    for name, part in parts.items():
        if isinstance(part, NeedsUnitRange):
            for other in (normalized[field] for field in part.unit_fields if field in normalized):
                what = f"parts.{name} takes pixels from 0 to 1, and parts.{other} before it"
                raise ValueError(f"{what} normalizes them: put it before {other}")
        if isinstance(part, Normalizes):
            normalized |= dict.fromkeys(part.normalized_fields, name)
