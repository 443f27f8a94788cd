"""A batch: a plain dict of fields, and the few things done to one as a whole.

A field is a tensor whose leading dimension is B. Anything else, such as a list of B strings, is carried along as it is: it is not moved,
pinned, counted or captured, and reaches the augmentation and the objective unchanged.
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
    """Return the records at ``indices`` (int64 [n], on the host). What is neither a tensor nor a list stays whole."""
    numbers: list[int] = indices.tolist()
    return {name: _taken(value, indices, numbers) for name, value in batch.items()}


def _taken(value: Any, indices: Tensor, numbers: list[int]) -> Any:
    if isinstance(value, Tensor):
        return value[indices.to(value.device)]
    return [value[number] for number in numbers] if isinstance(value, list) else value


def described(batch: Any) -> str:
    """Return the fields of a batch and the shape of a record in each, for messages. Never raises."""
    if not isinstance(batch, Mapping):
        return f"a {type(batch).__name__}"
    return ", ".join(
        f"{name} {_kind(value)}"
        for name, value in batch.items()
        if isinstance(name, str) and name != "index"
    )


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape[1:]))
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, list | tuple)
        else type(value).__name__
    )


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on ``device``; a pinned batch is copied asynchronously, in the current stream. On the same device: itself."""
    return {name: _moved(value, device) for name, value in batch.items()}


def _moved(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor) or value.device == device:
        return value
    return value.to(device, non_blocking=True)


def pin(batch: Batch) -> Batch:
    """The batch in page-locked host memory, from which a copy to CUDA runs beside the computation. What is on CUDA already stays."""
    return {name: _pinned(value) for name, value in batch.items()}


def _pinned(value: Any) -> Any:
    return value if not isinstance(value, Tensor) or value.is_cuda else value.pin_memory()


class _Thread(threading.local):
    pins_in = 0  # a process id: a worker process that is forked from this thread may not touch CUDA


_thread = _Thread()


def use(device: torch.device, pinned: bool) -> None:
    """Make ``device`` this thread's own: CUDA's present device is a thread's, and pinning opens a context on it. ``pinned``: batches that the
    thread makes with ``empty`` are page-locked from the start.
    """
    if device.type == "cuda" and device != torch.device(
        "cuda"
    ):  # torch refuses one without a number
        torch.cuda.set_device(device)
    _thread.pins_in = os.getpid() if pinned else 0


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a part of a host batch. torch keeps page-locked memory in a pool, from which it gives only what no copy still reads."""
    return torch.empty(shape, dtype=dtype, pin_memory=_thread.pins_in == os.getpid())
