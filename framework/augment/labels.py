"""How augments treat label maps: what moves pixels moves them too, what changes colors does not."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import Tensor

from framework.contracts.records import IGNORE
from framework.errors import ConfigError


def moving(augment: Any, labels: Sequence[str]) -> Any:
    """Return a copy of ``augment`` whose ``labels`` are moved, and no longer among ``fields``."""
    known = copy(augment)
    known.fields = tuple(name for name in augment.fields if name not in labels)
    known.labels = tuple(labels)
    return known


def leaving_alone(augment: Any, labels: Sequence[str], does: str) -> Any:
    """Return ``augment``, which changes colors, if none of its fields is among ``labels``.

    ``does`` says what it does, such as "normalizes". ConfigError C193 for a label map.
    """
    wrong = [name for name in augment.fields if name in labels]
    if wrong:
        where = f"augment.field = {', '.join(augment.fields)}"
        what = f"{does} {', '.join(wrong)}, a label map"
        raise ConfigError(193, where, what, "leave it out: only pictures have colors")
    return augment


def inverted(labels: Tensor) -> Tensor:
    """Return ``IGNORE`` minus each number (uint8); a second call restores the numbers.

    Between the two, an operation that fills in zeros fills in ``IGNORE``.
    """
    return IGNORE - labels
