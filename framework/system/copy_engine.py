"""Copies from many places of page-locked memory to a GPU, in one call and by its copy engine.

The cores of the host need not gather the pieces first, which takes most of them at the rate of the
bus. Source: cuMemcpyBatchAsync in NVIDIA's "CUDA Driver API", which drivers have since CUDA 12.8.
"""

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

DRIVER = "libcuda.so.1"
FOR_ALL_CONTEXTS = 1  # CU_MEMHOSTREGISTER_PORTABLE
IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read when their turn comes


class CopyEngineError(Exception):
    """Why a GPU cannot copy pieces by itself: one line."""


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint), ("number", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_uint),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


@final
class LockedFiles:
    """Files in memory that are mapped and page-locked until ``close``.

    Attributes:
        starts: The address of each file: int64 [files].

    Raises:
        CopyEngineError: The driver cannot lock them, or cannot copy pieces.
        OSError: A file cannot be opened for writing, which locking needs. Nothing is written.
    """

    def __init__(self, paths: Sequence[str], device: torch.device) -> None:
        _driver()  # before the files are read
        self.maps: list[np.ndarray] = []
        self._device = device
        torch.empty(1, device=device)  # makes the device's context
        try:
            for path in paths:
                self._add(path)
            starts = [array.ctypes.data for array in self.maps]
            self.starts = torch.tensor(starts, dtype=torch.int64)
            self._try()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the files. Pieces that are still to be copied keep the maps."""
        with suppress(RuntimeError):  # an error of the device, which was raised before
            torch.cuda.synchronize(self._device)
        for array in self.maps:
            _driver().cuMemHostUnregister(_pointer(array))
        self.maps = []
        self.starts = torch.empty(0, dtype=torch.int64)  # nothing can be read any more

    def _add(self, path: str) -> None:
        array = shared_map(path)
        size = ctypes.c_size_t(len(array))
        _check(_driver().cuMemHostRegister_v2(_pointer(array), size, FOR_ALL_CONTEXTS), path)
        self.maps.append(array)

    def _try(self) -> None:
        """Copy the first bytes, since a driver may know the function and refuse it."""
        first = self.maps[0][:1]
        with torch.cuda.stream(stream_aside(self._device)):
            copied = Pieces(self.starts[:1], (1,), torch.uint8, self.maps).to(self._device).cpu()
        if copied.numpy().tobytes() != first.tobytes():
            raise CopyEngineError(f"{DRIVER} copies other bytes")


def shared_map(path: str) -> np.ndarray:
    """Return a file in memory as uint8 [size], ready to be page-locked.

    Locking asks for pages that can be written. Only a page that nobody has read before counts as
    written then, which would change the time of the file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        array = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    finally:
        os.close(descriptor)
    array[:: mmap.PAGESIZE].max()
    return array


@final
class Pieces:
    """The values of a field of B records, where they lie in page-locked memory.

    Args:
        addresses: Where each value begins: int64 [B].
        shape: Of a value.
        dtype: Of a value.
        maps: The memory, which lives as long as they do.
    """

    def __init__(
        self,
        addresses: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        maps: Sequence[np.ndarray],
    ) -> None:
        self.addresses = addresses
        self.shape = shape
        self.dtype = dtype
        self._maps = maps

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def nbytes(self) -> int:
        return len(self) * self._piece_bytes

    @property
    def _piece_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def to(self, device: torch.device) -> Tensor:
        """Return the values on a GPU, [B, *shape], copied asynchronously on the current stream.

        CopyEngineError for the default stream, which the driver refuses.
        """
        count = len(self)
        values = torch.empty((count, *self.shape), dtype=self.dtype, device=device)
        if not values.numel():
            return values
        size = self._piece_bytes
        targets = values.data_ptr() + size * np.arange(count, dtype=np.uint64)
        sources = self.addresses.numpy()
        sizes = np.full(count, size, np.uint64)
        options = _Attributes(order=IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)  # the options hold from this piece on
        failed = ctypes.c_size_t(0)
        code = _driver().cuMemcpyBatchAsync(
            *map(_pointer, (targets, sources, sizes)),
            ctypes.c_size_t(count),
            ctypes.byref(options),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.byref(failed),
            ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream),
        )
        _check(code, "cuMemcpyBatchAsync")
        return values


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _check(code: int, where: str) -> None:
    """Raise CopyEngineError, with the driver's word for the code, unless it is 0."""
    if not code:
        return
    name = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(name))
    raise CopyEngineError(f"{where}: {(name.value or b'').decode() or code}")


@cache
def _driver() -> Any:
    """Return NVIDIA's driver. CopyEngineError if it is not there, or too old."""
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
