"""Put the simulated device in the place of ``torch.cuda``."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from framework.loader import prefetch
from framework.store import staging
from framework.system import memory
from tests.simulated_cuda import host, tensors
from tests.simulated_cuda.device import Device, Event, Graph, Stream
from tests.simulated_cuda.driver import Driver

# c10::DeviceType
CUDA = 1
META = 14


@contextmanager
def simulated(seed: int) -> Iterator[Device]:
    """Run this host thread's CUDA code on a simulated device."""
    device = Device(seed)
    with ExitStack() as stack:
        stack.enter_context(_device_guard())
        for name, put in _replacements(device).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, put))
        for name, put in {
            "endAllocateToPool": mock.Mock(),
            "releasePool": _release(device),
        }.items():
            stack.enter_context(mock.patch.object(torch._C, f"_cuda_{name}", put, create=True))
        stack.enter_context(mock.patch.object(torch.Tensor, "pin_memory", _pinning(device)))
        stack.enter_context(mock.patch.object(torch.Tensor, "is_pinned", _is_pinned(device)))
        stack.enter_context(mock.patch.object(torch, "from_dlpack", lambda tensor: tensor))
        stack.enter_context(mock.patch.object(prefetch, "Ahead", host.AheadInTurns))
        driver = device.driver = Driver(device)
        stack.enter_context(mock.patch.object(memory, "_driver", return_value=driver))
        stack.enter_context(mock.patch.object(staging, "LEAST_BYTES", 9))  # small images, too
        folder = Path("memory").absolute()  # other tests look for what is left in /dev/shm
        folder.mkdir(exist_ok=True)
        stack.enter_context(mock.patch.object(staging, "MEMORY", folder))
        memory.stream_aside.cache_clear()  # those of another device
        stack.callback(memory.stream_aside.cache_clear)
        host.AheadInTurns.device = device
        stack.callback(memory.use, torch.device("cpu"), False)
        stack.enter_context(tensors.OnDevice(device))
        yield device


@contextmanager
def _device_guard() -> Iterator[None]:
    """Let a torch without CUDA index tensors of CUDA, as it indexes those of ``meta``."""
    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * (META + 1)).in_dll(library, name)
    before = guards[CUDA]
    guards[CUDA] = guards[META]
    try:
        yield
    finally:
        guards[CUDA] = before


def _replacements(device: Device) -> dict[str, Any]:
    @contextmanager
    def capturing(graph: Graph, pool: Any = None, stream: Stream | None = None, **_: Any):
        device.synchronize()
        stream = stream or Stream(device)
        with device.on(stream):
            stream.capture = graph
            try:
                yield
            except RuntimeError:
                device.num_pools += 1
                raise
            finally:
                stream.capture = None

    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "Stream": lambda *_, **__: Stream(device),
        "Event": lambda **_: Event(device),
        "current_stream": lambda _=None: device.current,
        "default_stream": lambda _=None: device.default,
        "stream": device.on,
        "set_stream": device.set_stream,
        "synchronize": lambda _=None: device.synchronize(),
        "CUDAGraph": lambda: Graph(device),
        "graph": capturing,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: device.current.capture is not None,
        "get_rng_state": lambda _=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
    }


def _release(device: Device) -> Any:
    def release_pool(*_: Any) -> None:
        device.num_pools -= 1

    return release_pool


def _pinning(device: Device) -> Any:
    def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        assert not isinstance(tensor, tensors.DeviceTensor), "only host memory can be pinned"
        if device.pinned.address_of(tensor) is not None:
            return tensor
        return device.pinned.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    return pin_memory


def _is_pinned(device: Device) -> Any:
    return lambda tensor, *_: device.pinned.address_of(tensor) is not None
