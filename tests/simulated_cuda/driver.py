"""A simulated NVIDIA driver: it locks memory, and copies pieces in the order of a stream."""

import ctypes
from typing import Any

from tests.simulated_cuda.device import Device

INVALID_HANDLE = 400
NOT_REGISTERED = 713
NAMES = {INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE"}


class Driver:
    """What ``framework.system.memory`` calls.

    Attributes:
        locked: The size of each locked range, by its address.
        refuses: The code that locking returns.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.locked: dict[int, int] = {}
        self.refuses = 0

    def cuMemHostRegister_v2(self, start: Any, size: Any, flags: int) -> int:
        if not self.refuses:
            self.locked[start.value] = size.value
        return self.refuses

    def cuMemHostUnregister(self, start: Any) -> int:
        return 0 if self.locked.pop(start.value, None) is not None else NOT_REGISTERED

    def cuMemcpyBatchAsync(
        self, targets: Any, sources: Any, sizes: Any, count: Any, *options: Any
    ) -> int:
        """Queue the copies; refuse the default stream and unlocked memory as the driver does."""
        stream = options[-1].value
        if not stream:
            return INVALID_HANDLE
        numbers = [
            list((ctypes.c_uint64 * count.value).from_address(array.value))
            for array in (targets, sources, sizes)
        ]
        copies = list(zip(*numbers, strict=True))
        assert all(self._is_locked(source, size) for _, source, size in copies)

        def work() -> None:
            for target, source, size in copies:
                ctypes.memmove(target, source, size)

        self.device.streams[stream].run(work)
        return 0

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = NAMES.get(code)
        return 0

    def _is_locked(self, start: int, size: int) -> bool:
        ranges = self.locked.items()
        return any(first <= start and start + size <= first + length for first, length in ranges)
