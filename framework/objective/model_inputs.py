"""Which fields of a batch a model takes."""

from collections.abc import Sequence
from typing import Any

from framework.contracts.batch import Batch


def model_inputs(batch: Batch, names: str | Sequence[str]) -> list[Any]:
    """Return the fields of these names, in their order. One name may stand alone."""
    if isinstance(names, str):
        names = [names]
    return [batch[name] for name in names]
