"""Compare the form of a saved state with that of a new run, whose values do not matter."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 1 << 63  # no tensor holds an integer of this size
TRIED = ("torch.optim.", "framework.optim.")  # a step of these optimizers touches only its own
PLAIN_STEP = {"foreach": False, "fused": False, "capturable": False}


def check_like(saved: Any, own: Any, where: str) -> None:
    """Check that ``saved`` has the form of ``own``: kinds, keys, shapes and dtypes.

    What is None in a new run may be anything, and a list may have any length.

    Raises:
        TypeError: The first part that differs.
    """
    if isinstance(own, Tensor):
        if not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (own.shape, own.dtype):
            raise TypeError(f"{where} is {_kind(saved)} instead of {_kind(own)}")
    elif isinstance(own, dict):
        if not isinstance(saved, dict) or not own.keys() <= saved.keys():
            raise TypeError(f"{where} is {_kind(saved)} instead of {_kind(own)}")
        for name, value in own.items():
            check_like(saved[name], value, f"{where}.{name}")
    elif isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple):
            raise TypeError(f"{where} is {_kind(saved)} instead of {_kind(own)}")
        for number, (value, known) in enumerate(zip(saved, own, strict=False)):
            check_like(value, known, f"{where}.{number}")
    elif own is not None and not _is_like(saved, own):
        raise TypeError(f"{where} is {_kind(saved)} instead of one like {own!r}")


def _is_like(saved: Any, own: Any) -> bool:
    if type(own) not in (int, float):
        return type(saved) is type(own)
    if type(saved) not in (int, type(own)):
        return False
    if math.isinf(own):  # the best value so far
        return not math.isnan(saved)
    return abs(saved) < LARGEST and (saved >= 0 or own < 0)


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
