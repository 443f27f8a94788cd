"""A batch of records, and the operations on a whole batch.

A batch is a plain dict of fields. A field is a tensor whose leading dimension is B, or any other
value, such as a list of B strings. Other values are not moved, pinned, counted or captured: they
reach the augmentation and the objective unchanged.
"""

import os
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Return the fields that are tensors."""
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def taken(batch: Batch, indices: Tensor) -> Batch:
    """Return the records at ``indices`` (int64 [n], on the host), in that order.

    Tensors and lists are indexed. Any other value is kept as it is.
    """
    result = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Tensor):
            result[name] = value[indices.to(value.device)]
        elif isinstance(value, list):
            result[name] = [value[number] for number in indices.tolist()]
    return result


def described(batch: Any) -> str:
    """Return the names of a batch's fields and the shape of one record in each. Never raises."""
    if not isinstance(batch, Mapping):
        return f"a {type(batch).__name__}"
    return ", ".join(
        f"{name} {_form(value)}"
        for name, value in batch.items()
        if isinstance(name, str) and name != "index"
    )


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape[1:]))
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def move(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on ``device``, copied asynchronously on the current stream if it is pinned.

    Tensors that are already on ``device`` are not copied.
    """
    result = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.device != device:
            result[name] = value.to(device, non_blocking=True)
    return result


def pin(batch: Batch) -> Batch:
    """Return the batch in page-locked memory, which a GPU can copy while it computes."""
    result = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Tensor) and not value.is_cuda:
            result[name] = value.pin_memory()
    return result


class _Thread(threading.local):
    # A process id, because a worker forked from this thread must not touch CUDA.
    pins_in = 0


_thread = _Thread()


def use(device: torch.device, pinned: bool, stream: torch.cuda.Stream | None = None) -> None:
    """Make ``device``, and ``stream`` on it, the current ones of this thread.

    CUDA keeps them per thread. If ``pinned``, ``empty`` returns page-locked memory in this thread.
    """
    # torch refuses a CUDA device without a number.
    if device.type == "cuda" and device != torch.device("cuda"):
        torch.cuda.set_device(device)
    if stream is not None:
        torch.cuda.set_stream(stream)
    _thread.pins_in = 0
    if pinned:
        _thread.pins_in = os.getpid()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return uninitialized memory for a part of a host batch.

    torch pools page-locked memory, and reuses a block only after all copies from it have ended.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=_thread.pins_in == os.getpid())
