"""Host memory: page-locked for a GPU to copy, its copies by the copy engine, and what malloc keeps.

Source: cuMemcpyBatchAsync in NVIDIA's "CUDA Driver API", which drivers have since CUDA 12.8.
"""

import ctypes
import math
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.system.portable import CLOSED_BY_EXEC, c_function

ALIGNED = 256  # bytes; kernels then read every field in whole words
DRIVER = "libcuda.so.1"
FOR_ALL_CONTEXTS = 1  # CU_MEMHOSTREGISTER_PORTABLE
IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read when their turn comes
M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4
TRIM_BYTES = 1 << 30
MMAP_BYTES = 32 << 20  # the most that glibc accepts
MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
SETTINGS = (*MALLOC, "GLIBC_TUNABLES", "LD_PRELOAD")


@final
class Block(threading.local):
    """The page-locked memory of the batch that this thread makes, so that one copy moves it all.

    A batch gets as much as the batch before it used. What does not fit lies beside the block.
    """

    _memory: Tensor | None = None
    _used = 0  # bytes that this batch asked for
    _expected = 0  # bytes that the batch before asked for

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
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
        return start if 0 <= start < len(self._memory) else None

    def end(self) -> Tensor | None:
        """End the batch, and return the bytes that it used: uint8 [bytes]."""
        memory = self._memory
        self._expected = self._used
        self._memory = None
        self._used = 0
        return None if memory is None else memory[: self._expected]


class _Thread(threading.local):
    pins_in = 0  # a process id, because a worker forked from this thread must not touch CUDA


block = Block()
_thread = _Thread()


def use(device: torch.device, pinned: bool, stream: torch.cuda.Stream | None = None) -> None:
    """Make ``device``, and ``stream`` on it, the current ones of this thread.

    If ``pinned``, ``empty`` returns page-locked memory in this thread.
    """
    # torch refuses a CUDA device without a number.
    if device.type == "cuda" and device != torch.device("cuda"):
        torch.cuda.set_device(device)
    if stream is not None:
        torch.cuda.set_stream(stream)
    _thread.pins_in = os.getpid() if pinned else 0


def pins_here() -> bool:
    """Return whether this thread makes batches in page-locked memory, for a GPU to copy."""
    return _thread.pins_in == os.getpid()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return uninitialized memory for a part of a host batch.

    torch pools page-locked memory, and reuses a block only after all copies from it have ended.
    """
    return block.take(shape, dtype) if pins_here() else torch.empty(shape, dtype=dtype)


class CopyEngineError(Exception):
    """Why a GPU cannot copy pieces by itself: one line."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: order, kind and number of the source and of the target, flags."""

    _fields_ = (("order", ctypes.c_uint), ("rest", ctypes.c_uint * 5))


@final
class LockedFiles:
    """Files in memory that are mapped and page-locked until ``close``.

    ``maps`` are their bytes, uint8 [size], and ``starts`` their addresses, int64 [files].
    CopyEngineError if the driver cannot lock or copy, OSError if a file is not writable.
    """

    def __init__(self, paths: Sequence[str], device: torch.device) -> None:
        driver = _driver()  # before the files are read
        self.maps: list[np.ndarray] = []
        self._device = device
        torch.empty(1, device=device)  # makes the device's context
        try:
            for path in paths:
                array = shared_map(path)
                start, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array))
                _check(driver.cuMemHostRegister_v2(start, size, FOR_ALL_CONTEXTS), path)
                self.maps.append(array)
            self.starts = torch.tensor([own.ctypes.data for own in self.maps], dtype=torch.int64)
            # A driver may know the function and refuse it.
            with torch.cuda.stream(stream_aside(device)):
                copied = Pieces(self.starts[:1], (1,), torch.uint8, self.maps).to(device).cpu()
            if copied.numpy().tobytes() != self.maps[0][:1].tobytes():
                raise CopyEngineError(f"{DRIVER} copies other bytes")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the files. Pieces that are still to be copied keep the maps."""
        with suppress(RuntimeError):  # an error of the device, which was raised before
            torch.cuda.synchronize(self._device)
        for array in self.maps:
            _driver().cuMemHostUnregister(ctypes.c_void_p(array.ctypes.data))
        self.maps = []
        self.starts = torch.empty(0, dtype=torch.int64)  # nothing can be read any more


def shared_map(path: str) -> np.ndarray:
    """Return a file in memory as uint8 [size], ready to be page-locked.

    Locking asks for writable pages. Each is read first: otherwise it would count as written, which
    changes the time of the file.
    """
    descriptor = os.open(path, os.O_RDWR | CLOSED_BY_EXEC)
    try:
        array = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    finally:
        os.close(descriptor)
    array[:: mmap.PAGESIZE].max()
    return array


@final
@dataclass(eq=False)
class Pieces:
    """The values of a field of B records in page-locked memory, ``maps``, which they keep alive."""

    addresses: Tensor  # where each value begins: int64 [B]
    shape: tuple[int, ...]
    dtype: torch.dtype
    maps: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def nbytes(self) -> int:
        return len(self) * math.prod(self.shape) * self.dtype.itemsize

    def to(self, device: torch.device) -> Tensor:
        """Return the values on a GPU, [B, *shape], copied asynchronously on the current stream.

        CopyEngineError for the default stream, which the driver refuses.
        """
        count = len(self)
        values = torch.empty((count, *self.shape), dtype=self.dtype, device=device)
        if not values.numel():
            return values
        size = math.prod(self.shape) * self.dtype.itemsize
        targets = values.data_ptr() + size * np.arange(count, dtype=np.uint64)
        sizes = np.full(count, size, np.uint64)
        options = _Attributes(order=IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)  # the options hold from this piece on
        failed = ctypes.c_size_t(0)
        code = _driver().cuMemcpyBatchAsync(
            ctypes.c_void_p(targets.ctypes.data),
            ctypes.c_void_p(self.addresses.data_ptr()),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(count),
            ctypes.byref(options),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.byref(failed),
            ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream),
        )
        _check(code, "cuMemcpyBatchAsync")
        return values


def _check(code: int, where: str) -> None:
    if code:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        raise CopyEngineError(f"{where}: {(name.value or b'').decode() or code}")


@cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise CopyEngineError(f"{DRIVER} is not there") from error
    if not hasattr(driver, "cuMemcpyBatchAsync"):
        raise CopyEngineError(f"{DRIVER} has no cuMemcpyBatchAsync, which came with CUDA 12.8")
    return driver


@cache
def stream_aside(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for what cannot be copied on the default one."""
    return torch.cuda.Stream(device)


@cache
def keep_freed_memory(of_any_size: bool = False) -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process. Return whether it accepted.

    Otherwise every new batch and activation takes one page fault per 4 kB: a fifth of a small
    network's step on the CPU. Settings of malloc in the environment take precedence.

    ``of_any_size`` is for training on the CPU: blocks above 32 MB are kept, too (half of a step
    whose activations take 50 MB each), but memory that is free between used blocks stays.
    """
    mallopt = c_function("mallopt")  # not of every C library
    if mallopt is None or any(os.environ.get(name) for name in SETTINGS):
        return False
    kept = mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
    if of_any_size:
        kept = kept and mallopt(M_MMAP_MAX, 0)
    return bool(kept)


def give_back_freed_memory() -> None:
    """Let glibc give back what is free, in whole pages."""
    if (trim := c_function("malloc_trim")) is not None:
        trim(0)
