"""Which fields of a batch a model takes."""

from collections.abc import Sequence
from typing import Any

from framework.contracts.batch import Batch


def input_names(names: str | Sequence[str]) -> list[str]:
    """Return the names as a list. One name may stand alone."""
    if isinstance(names, str):
        return [names]
    return list(names)


def model_inputs(batch: Batch, names: str | Sequence[str]) -> list[Any]:
    """Return the fields of these names, in their order. One name may stand alone."""
    return [batch[name] for name in input_names(names)]
