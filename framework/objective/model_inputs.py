"""Which fields of a batch a model takes, and what of its output is compared with the target."""

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


def for_target(output: Any, target: Any) -> Any:
    """Return an output [B, 1] as [B] if the target is one number per record, else as it is.

    Losses of torch would compare each record of [B, 1] with every target of [B].
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return output
    if target.dim() == 1 and output.shape == (len(target), 1):
        return output.squeeze(1)
    return output


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
