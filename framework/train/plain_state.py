"""Which values a saved state may hold: those that are read again without running any code."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str, torch.dtype, torch.device)
MOST_MOMENTS = 16  # of an optimizer for each parameter; Adam has three


def is_plain(value: Any) -> bool:
    """Return whether a saved state may hold ``value``: nothing that only code could restore."""
    if type(value) in (dict, OrderedDict):
        keys_fit = not any(isinstance(key, Tensor) for key in value)
        return keys_fit and all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple, torch.Size) and all(map(is_plain, value))
    return value is None or type(value) in PLAIN or is_plain_tensor(value)


def is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor whose file cannot declare more than it holds."""
    if type(value) not in (Tensor, nn.Parameter):
        return False
    has_numbers = value.layout == torch.strided and value.device.type != "meta"
    return has_numbers and not value.is_quantized and not value.is_nested


def foreign_value(optimizer: Mapping[str, Any]) -> str:
    """Return what no saved state may hold in the state of an optimizer, or "" if all is plain.

    ``optimizer`` is what ``torch.optim.Optimizer.state_dict`` returns.
    """
    groups = dict(enumerate(optimizer.get("param_groups", ())))
    for part in (optimizer.get("state", {}), groups):
        for key, values in part.items():
            named = values if isinstance(values, dict) else {key: values}
            for name, value in named.items():
                if not is_plain(value):
                    return f"the optimizer's {name} is {_inside(value)}"
    return ""


def foreign_weight(weights: Mapping[str, Any]) -> str:
    """Return what no saved state may hold in a model's ``state_dict``, or "" if all is plain."""
    foreign = (name for name, value in weights.items() if not is_plain(value))
    return next((f"the model's {name} is {_inside(weights[name])}" for name in foreign), "")


def check_moments(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that the state of an optimizer is of the sizes of its parameters.

    A tensor has the parameter's shape, or at most as many numbers as the parameter or a square
    matrix over its longest dimension.

    Raises:
        ValueError: A tensor is larger, or a parameter has too many.
    """
    saved = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [own for group in optimizer.param_groups for own in group["params"]]
    for number, parameter in zip(saved, parameters, strict=True):
        longest = max(parameter.shape, default=1)
        most = max(parameter.numel(), longest * longest)
        moments = state["state"].get(number, {})
        sizes = [moment.numel() for moment in _tensors(moments)]
        if max(sizes, default=0) > most:
            what = f"for a parameter of the shape {tuple(parameter.shape)}"
            raise ValueError(f"the optimizer has {max(sizes)} numbers {what}")
        if sum(sizes) > MOST_MOMENTS * most:
            raise ValueError(f"the optimizer has {len(sizes)} tensors for one parameter")


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _inside(value: Any) -> str:
    """Name the type of a value, and of the first part of it that is not plain."""
    name = type(value).__name__
    if isinstance(value, Tensor):
        return f"{name} of a layout or kind that cannot be checked"
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value.values()]
    elif isinstance(value, list | tuple):
        parts = [*value]
    bad = [part for part in parts if not is_plain(part)]
    if not bad:
        return name
    return f"{name} with {_inside(bad[0])}"
