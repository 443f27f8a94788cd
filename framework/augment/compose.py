"""Several augments in turn, each with draws of its own."""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import Augment, KnowsLabels


def _check_pixels(parts: Mapping[str, Augment]) -> None:
    """ValueError where one that takes pixels from 0 to 1 comes after one that makes other numbers of them: it would cut them off."""
    normalized: dict[str, str] = {}  # fields, and by which part
    for name, part in parts.items():
        for field in getattr(part, "fields", ()):
            if getattr(part, "of_pixels", False) and field in normalized:
                other = normalized[field]
                raise ValueError(
                    f"parts.{name} takes pixels from 0 to 1, and parts.{other} before it normalizes them: put it before {other}"
                )
            if getattr(part, "mean", None) is not None:
                normalized[field] = name


@final
class Compose:
    """``parts``: augments by name, done in this order. Adding one at the end leaves the random numbers of those before it as they
    are only where the sum of draws stays the same: a record's numbers are one row, cut among the parts.
    """

    def __init__(self, parts: Mapping[str, Augment]) -> None:
        if not parts:
            raise ValueError("parts = {} changes nothing: name some, or choose augment=none")
        for name, part in parts.items():
            if not callable(part):
                raise TypeError(
                    f"parts.{name} = {part} is no augment: add +augment@augment.parts.{name}=CHOICE"
                )
        _check_pixels(parts)
        self.parts = dict(parts)
        self.num_draws = sum(part.num_draws for part in self.parts.values())
        self.exact = all(getattr(part, "exact", False) for part in self.parts.values())

    def with_labels(self, labels: Sequence[str]) -> "Compose":
        return Compose(
            {
                name: part.with_labels(labels) if isinstance(part, KnowsLabels) else part
                for name, part in self.parts.items()
            }
        )

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        start = 0
        for part in self.parts.values():
            mine = None if draws is None else draws[:, start : start + part.num_draws]
            batch = part(batch, mine)
            start += part.num_draws
        return dict(batch)
