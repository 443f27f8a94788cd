"""Which values a saved state may hold: those that are read again without running any code."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str, torch.dtype, torch.device)


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
