"""Which values a saved state may hold, and whether it has the form of a new run's.

A state holds what is read again without running any code.
"""

import io
import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from framework.contracts.parallel import Parallel

PLAIN = (bool, int, float, str, torch.dtype, torch.device)
LARGEST = 1 << 63  # no tensor holds an integer of this size
TRIED = ("torch.optim.", "framework.optim.")  # a step of these optimizers touches only its own
PLAIN_STEP = {"foreach": False, "fused": False, "capturable": False}


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


def of_all_ranks(value: Any, parallel: Parallel) -> list[Any]:
    """Return the plain value of each rank, on the CPU. All ranks call this together."""
    if parallel.world_size == 1:
        return [value]
    file = io.BytesIO()
    torch.save(value, file)
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    files = [io.BytesIO(own.numpy().tobytes()) for own in parallel.gather(data)]
    return [torch.load(own, map_location="cpu", weights_only=True) for own in files]


def foreign_value(optimizer: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> str:
    """Return what no saved state may hold in an optimizer's or a model's; "" if all is plain."""
    groups = dict(enumerate(optimizer.get("param_groups", ())))
    for part in (optimizer.get("state", {}), groups):
        for key, values in part.items():
            named = values if isinstance(values, dict) else {key: values}
            for name, value in named.items():
                if not is_plain(value):
                    return f"the optimizer's {name} is {_inside(value)}"
    for name, value in (weights or {}).items():
        if not is_plain(value):
            return f"the model's {name} is {_inside(value)}"
    return ""


def _inside(value: Any) -> str:
    """Name the type of a value, and of the first part of it that is not plain."""
    name = type(value).__name__
    if isinstance(value, Tensor):
        return f"{name} of a layout or kind that cannot be checked"
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for part in parts:
            if not is_plain(part):
                return f"{name} with {_inside(part)}"
    return name


def check_like(saved: Any, own: Any, where: str) -> None:
    """Check that ``saved`` has the form of ``own``: kinds, keys, shapes and dtypes.

    What is None in a new run may be anything, and a list may have any length. TypeError names the
    first part that differs.
    """
    if isinstance(own, Tensor):
        is_like = isinstance(saved, Tensor)
        is_like = is_like and (saved.shape, saved.dtype) == (own.shape, own.dtype)
    elif isinstance(own, dict):
        is_like = isinstance(saved, dict) and own.keys() <= saved.keys()
    elif isinstance(own, list | tuple):
        is_like = isinstance(saved, list | tuple)
    elif type(own) not in (int, float):
        is_like = own is None or type(saved) is type(own)
    elif type(saved) not in (int, type(own)):
        is_like = False
    elif math.isinf(own):  # the best value so far
        is_like = not math.isnan(saved)
    else:
        is_like = abs(saved) < LARGEST and (saved >= 0 or own < 0)
    if not is_like:
        raise TypeError(f"{where} is {_kind(saved)} instead of {_kind(own)}")
    if isinstance(own, dict):
        for name, value in own.items():
            check_like(saved[name], value, f"{where}.{name}")
    elif isinstance(own, list | tuple):
        for number, (value, known) in enumerate(zip(saved, own, strict=False)):
            check_like(value, known, f"{where}.{number}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"[:200]
    return f"{type(value).__name__} {value!r}"[:100]


def optimizer_form(optimizer: torch.optim.Optimizer) -> dict[Any, Any] | None:
    """Return the form of an optimizer's state by the number of the parameter.

    A twin takes a step on tensors without memory. None for an optimizer that cannot do this.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith(TRIED):
        return None
    twin = kind.__new__(kind)
    vars(twin).update(vars(optimizer), state=defaultdict(dict), param_groups=[])
    for group in optimizer.param_groups:
        shapes: list[nn.Parameter] = []
        for own in group["params"]:
            shape = torch.empty(own.shape, dtype=own.dtype, device="meta")
            shapes.append(nn.Parameter(shape))
            shapes[-1].grad = shape
        plain = {name: value for name, value in PLAIN_STEP.items() if name in group}
        twin.param_groups.append({**group, **plain, "params": shapes})
    try:
        kind.step(twin)
        return twin.state_dict()["state"]
    except (RuntimeError, TypeError, AssertionError):  # it reads values
        return None
