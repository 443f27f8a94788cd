"""Several augments in turn, each with draws of its own."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import Augment, AugmentTraits, KnowsLabels, traits_of


@final
class Compose(AugmentTraits):
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
        starts = accumulate((part.num_draws for part in parts.values()), initial=0)
        self.alternating = tuple(
            start + column
            for start, part in zip(starts, parts.values(), strict=False)
            for column in traits_of(part).alternating
        )
        self.exact = all(traits_of(part).exact for part in parts.values())
        self.moves_pixels = any(traits_of(part).moves_pixels for part in parts.values())

    def with_labels(self, labels: Sequence[str]) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, KnowsLabels):
                parts[name] = part.with_labels(labels)
        return Compose(parts)

    def with_layout(self, layout: torch.memory_format) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, AugmentTraits):
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


def flat_parts(parts: Mapping[str, Augment], place: str = "parts") -> Iterator[tuple[str, Augment]]:
    """Yield the parts, and in place of a composition its own, with their places."""
    for name, part in parts.items():
        if isinstance(part, Compose):
            yield from flat_parts(part.parts, f"{place}.{name}.parts")
        else:
            yield f"{place}.{name}", part


def _check_pixels(parts: Mapping[str, Augment]) -> None:
    """Raise ValueError if a part does not fit the range of the pixels that others made."""
    normalized: dict[str, str] = {}  # fields, and by which part
    scaled: dict[str, str] = {}  # fields from 0 to 1, and by which part
    for place, part in flat_parts(parts):
        traits = traits_of(part)
        for other in (normalized[field] for field in traits.unit_fields if field in normalized):
            what = f"{place} takes pixels from 0 to 1, and {other} before it normalizes them"
            raise ValueError(f"{what}: put it before {other}")
        from_0_to_1 = scaled.keys() - normalized.keys()
        if max(traits.value, default=0) > 1:
            for other in (scaled[field] for field in traits.painted_fields if field in from_0_to_1):
                what = f"{place}.value = {list(traits.value)} is above 1, and {other} before it"
                raise ValueError(f"{what} makes pixels from 0 to 1: give values from 0 to 1")
        for field in traits.normalized_fields:
            if field in normalized:
                other = normalized[field]
                what = f"{place} normalizes {field}, and {other} before it has already"
                fix = "set mean and std of one of them to null, or leave it out"
                raise ValueError(f"{what}: {fix}")
        normalized |= dict.fromkeys(traits.normalized_fields, place)
        scaled |= dict.fromkeys(traits.scaled_fields, place)
