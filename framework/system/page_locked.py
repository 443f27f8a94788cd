"""Page-locked host memory, which a GPU can copy while it computes."""

import math
import os
import threading
from typing import final

import torch
from torch import Tensor

ALIGNED = 256  # bytes; kernels then read every field in whole words


@final
class Block(threading.local):
    """The page-locked memory of the batch that this thread makes, so that one copy moves it all.

    A batch gets as much as the batch before it used. What does not fit lies beside the block.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._used = 0  # bytes that this batch asked for
        self._expected = 0  # bytes that the batch before asked for

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return uninitialized memory."""
        size = math.prod(shape) * dtype.itemsize
        start = -(-self._used // ALIGNED) * ALIGNED
        self._used = start + size
        if self._memory is None:
            length = max(self._expected, size)
            self._memory = torch.empty((length,), dtype=torch.uint8, pin_memory=True)
        if self._used > len(self._memory):
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        return self._memory[start : self._used].view(dtype).view(shape)

    def start_of(self, tensor: Tensor) -> int | None:
        """Return the first byte of a tensor in the block, or None if it lies elsewhere."""
        if self._memory is None:
            return None
        start = tensor.data_ptr() - self._memory.data_ptr()
        if not 0 <= start < len(self._memory):
            return None
        return start

    def end(self) -> Tensor | None:
        """End the batch, and return the bytes that it used: uint8 [bytes]."""
        memory = self._memory
        self._expected = self._used
        self._memory = None
        self._used = 0
        if memory is None:
            return None
        return memory[: self._expected]


class _Thread(threading.local):
    # A process id, because a worker forked from this thread must not touch CUDA.
    pins_in = 0


block = Block()
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


def pins_here() -> bool:
    """Return whether this thread makes batches in page-locked memory, for a GPU to copy."""
    return _thread.pins_in == os.getpid()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return uninitialized memory for a part of a host batch.

    torch pools page-locked memory, and reuses a block only after all copies from it have ended.
    """
    if pins_here():
        return block.take(shape, dtype)
    return torch.empty(shape, dtype=dtype)
