"""Which fields of a batch a model takes, and which part of its output is the prediction."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from framework.contracts.batch import Batch


def input_names(names: str | Sequence[str]) -> list[str]:
    """Return the names as a list. One name may stand alone."""
    if isinstance(names, str):
        return [names]
    return list(names)


def model_inputs(batch: Batch, names: str | Sequence[str]) -> list[Any]:
    """Return the fields of these names, in their order. One name may stand alone."""
    if isinstance(names, str):
        return [batch[names]]
    return [batch[name] for name in names]


@runtime_checkable
class HasLogits(Protocol):
    """The output of a model of transformers, and of some of torchvision."""

    logits: Tensor


def prediction(output: Any) -> Any:
    """Return a model's prediction: the output itself, its ``logits``, or its ``out``.

    ``out`` is what the segmentation models of torchvision call it.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, HasLogits):
        return output.logits
    if isinstance(output, Mapping) and "out" in output:
        return output["out"]
    return output
