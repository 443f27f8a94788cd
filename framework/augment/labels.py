"""What augments do to label maps: what moves pixels moves them too, what changes colors leaves them alone."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import Tensor

from framework.contracts.records import IGNORE
from framework.errors import ConfigError


def moving(augment: Any, fields: Sequence[str], labels: Sequence[str]) -> Any:
    """Return a copy of ``augment`` that also moves ``labels``, in its attributes ``fields`` (pictures) and ``labels``."""
    known = copy(augment)
    known.fields = tuple(name for name in fields if name not in labels)
    known.labels = tuple(labels)
    return known


def leaving_alone(augment: Any, fields: Sequence[str], labels: Sequence[str], does: str) -> Any:
    """Return ``augment``, which changes colors of ``fields``. ConfigError C193 where a label map is one of them.

    Args:
        augment: The augment.
        fields: What it changes.
        labels: The fields that are label maps.
        does: What it does, such as "normalizes".

    """
    wrong = [name for name in fields if name in labels]
    if wrong:
        where = f"augment.field = {', '.join(fields)}"
        raise ConfigError(
            193,
            where,
            f"{does} {', '.join(wrong)}, a label map",
            "leave it out: only pictures have colors",
        )
    return augment


def inverted(labels: Tensor) -> Tensor:
    """Return ``IGNORE`` minus each number (uint8); twice gives the numbers back. What fills in zeros between fills in ``IGNORE``."""
    return IGNORE - labels
