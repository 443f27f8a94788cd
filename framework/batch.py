"""A batch: a plain ``dict[str, Tensor]``, leading dimension B, and the few things done to one as a whole."""

import os
import threading

import torch
from torch import Tensor

Batch = dict[str, Tensor]


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on ``device``; a pinned batch is copied asynchronously, in the current stream. On the same device: itself."""
    return {name: tensor if tensor.device == device else tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def pin(batch: Batch) -> Batch:
    """The batch in page-locked host memory, from which a copy to CUDA runs beside the computation. What is on CUDA already stays."""
    return {name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in batch.items()}


class _Thread(threading.local):
    pins_in = 0  # a process id: a worker process that is forked from this thread may not touch CUDA


_thread = _Thread()


def use(device: torch.device, pinned: bool) -> None:
    """Make ``device`` this thread's own: CUDA's present device is a thread's, and pinning opens a context on it. ``pinned``: batches that the
    thread makes with ``empty`` are page-locked from the start.
    """
    if device.type == "cuda" and device != torch.device("cuda"):  # torch refuses one without a number
        torch.cuda.set_device(device)
    _thread.pins_in = os.getpid() if pinned else 0


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a part of a host batch. torch keeps page-locked memory in a pool, from which it gives only what no copy still reads."""
    return torch.empty(shape, dtype=dtype, pin_memory=_thread.pins_in == os.getpid())
