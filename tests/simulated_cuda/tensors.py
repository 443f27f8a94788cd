"""Tensors on the simulated device, and what torch's operators do with them there."""

import ctypes
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.simulated_cuda.device import BYTES_PER_S, OP_S, Block, Device

CUDA = torch.device("cuda", 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class _Owner:
    """A block, given back when no tensor uses it any more."""

    def __init__(self, device: Device, block: Block) -> None:
        self.device = device
        self.block = block

    def __del__(self) -> None:
        self.device.allocator.give_block(self.block)


class DeviceTensor(torch.Tensor):
    """A tensor whose memory is a block of the simulated device."""

    owner: _Owner

    @staticmethod
    def __new__(cls, owner: _Owner, like: torch.Tensor) -> "DeviceTensor":
        """Return a tensor of the shape of ``like`` in the memory of ``owner``."""
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            like.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=CUDA,
        )
        tensor.owner = owner
        return tensor

    def __init__(self, *_: Any) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        return self.owner.block.bytes.data_ptr() + self.storage_offset() * self.element_size()

    def record_stream(self, stream: Any) -> None:
        self.owner.block.users.add(stream)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, cls)]
        return dispatched(tensors[0].owner.device, func, args, kwargs or {})


class OnDevice(TorchDispatchMode):
    """Runs the operators of this host thread on the simulated device if they belong there."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("pin_memory"):
            assert func is torch.ops.aten.empty.memory_format, func
            return self.device.pinned.empty(tuple(args[0]), kwargs["dtype"] or torch.float32)
        leaves = tree_flatten((args, kwargs))[0]
        if _is_cuda(kwargs.get("device")) or any(isinstance(leaf, DeviceTensor) for leaf in leaves):
            return dispatched(self.device, func, args, kwargs)
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def dispatched(device: Device, func: Any, args: tuple, kwargs: dict) -> Any:
    """Queue an operator on the current stream, and return the tensors that it will fill."""
    with _disable_current_modes(), device.lock, torch.no_grad():
        if func in READS:
            device.current.synchronize()
            return func(*tree_map(_real, args), **kwargs)
        if func is torch.ops.aten._to_copy.default and not _is_cuda(kwargs.get("device", CUDA)):
            return _to_host(device, func, args, kwargs)
        if not func._schema.returns:  # an operator of lists, in place
            _queue(device, func, args, kwargs, [])
            return None
        if func is COPIES[1]:
            _queue(device, func, args, kwargs, [None])
            return args[0]
        metas = func(*tree_map(_meta, args), **_placed(tree_map(_meta, kwargs), "meta"))
        outputs, spec = tree_flatten(metas)
        aliases = _aliases(func, args, kwargs, len(outputs))
        results = [
            _result(device, output, alias) for output, alias in zip(outputs, aliases, strict=True)
        ]
        fresh = [
            result if alias is None else None
            for result, alias in zip(results, aliases, strict=True)
        ]
        if any(alias is None or alias[1] for alias in aliases):
            _queue(device, func, args, kwargs, fresh)
        return tree_unflatten(results, spec)


def _aliases(func: Any, args: tuple, kwargs: dict, count: int) -> list[Any]:
    """Return for each output None, or the argument that it is a view of and whether it is it."""
    named = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False))
    named |= kwargs
    aliases: list[Any] = []
    for returned in func._schema.returns:
        info = returned.alias_info
        if info is None:
            aliases.append(None)
            continue
        # the views of a list name no argument: operators that make them have only one
        name = next(
            argument.name
            for argument in func._schema.arguments
            if argument.alias_info
            and (argument.alias_info.before_set & info.before_set or not info.before_set)
        )
        aliases.append((named[name], info.is_write))
    if len(aliases) == 1 and count != 1:  # a list of tensors
        aliases *= count
    return aliases


def _result(device: Device, output: torch.Tensor, alias: Any) -> Any:
    if alias is None:
        block = device.allocator.take_block(output.untyped_storage().nbytes())
        return DeviceTensor(_Owner(device, block), output)
    argument, is_same = alias
    return argument if is_same else DeviceTensor(argument.owner, output)


def _queue(device: Device, func: Any, args: tuple, kwargs: dict, fresh: list) -> None:
    """Queue the work. It holds blocks, not tensors: a tensor that dies frees its memory."""
    stream = device.current
    is_copy = func in COPIES
    non_blocking = bool(kwargs.get("non_blocking") or (func is COPIES[1] and args[2:] == (True,)))
    late: list[int] = []
    waits = False

    def argument(leaf: Any) -> Any:
        nonlocal waits
        if isinstance(leaf, DeviceTensor):
            return _Place(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        address = device.pinned.address_of(leaf)
        if is_copy and address is not None and non_blocking:
            late.append(address)
            return _Pinned(leaf)
        waits |= is_copy and leaf.dim() > 0
        written = func is COPIES[1] and leaf is args[0]
        return leaf if written else leaf.clone()  # pageable memory is staged at once

    leaves, spec = tree_flatten((args, _placed(kwargs, "cpu")))
    leaves = [argument(leaf) for leaf in leaves]
    places = [None if result is None else _Place(result) for result in fresh]

    def work() -> None:
        with _disable_current_modes(), torch.no_grad():
            ready = [leaf.now() if isinstance(leaf, _Place | _Pinned) else leaf for leaf in leaves]
            now_args, now_kwargs = tree_unflatten(ready, spec)
            outputs = tree_flatten(func(*now_args, **now_kwargs))[0]
            for place, output in zip(places, outputs, strict=False):
                if place is not None:
                    place.now().copy_(output)

    num_bytes = sum(leaf.num_bytes for leaf in leaves if isinstance(leaf, _Place))
    stream.run(work, OP_S + num_bytes / BYTES_PER_S)
    for address in late:
        device.pinned.record(address, stream)
    if waits:
        stream.synchronize()


def _to_host(device: Device, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """Copy to the host: asynchronously into page-locked memory, or wait for it."""
    source = args[0]
    dtype = kwargs.get("dtype") or source.dtype
    non_blocking = kwargs.get("non_blocking", False)
    shape = tuple(source.shape)
    target = device.pinned.empty(shape, dtype) if non_blocking else torch.empty(shape, dtype=dtype)
    dispatched(device, torch.ops.aten.copy_.default, (target, source, non_blocking), {})
    if not non_blocking:
        device.current.synchronize()
    return target


class _Place:
    """Where a tensor lies, without keeping its memory."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self._block = tensor.owner.block
        self._dtype = tensor.dtype
        self._form = (tensor.size(), tensor.stride(), tensor.storage_offset())
        self.num_bytes = tensor.numel() * tensor.element_size()

    def now(self) -> torch.Tensor:
        usable = self._block.size // self._dtype.itemsize * self._dtype.itemsize
        return self._block.bytes[:usable].view(self._dtype).as_strided(*self._form)


class _Pinned:
    """Page-locked host memory, read or written when the copy is done, without being kept."""

    def __init__(self, tensor: torch.Tensor) -> None:
        array = tensor.detach().numpy()
        self._address = array.__array_interface__["data"][0]
        self._tensor_form = (array.shape, array.strides)
        self._dtype = array.dtype

    def now(self) -> torch.Tensor:
        shape, strides = self._tensor_form
        if 0 in shape:
            return torch.from_numpy(np.empty(shape, self._dtype))
        size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + self._dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self._address)
        return torch.from_numpy(np.ndarray(shape, self._dtype, memory, strides=strides))


def _real(leaf: Any) -> Any:
    return _Place(leaf).now() if isinstance(leaf, DeviceTensor) else leaf


def _meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not isinstance(leaf, DeviceTensor):
        return leaf if leaf.dim() == 0 else leaf.to("meta")
    usable = leaf.owner.block.size // leaf.dtype.itemsize
    memory = torch.empty(usable, dtype=leaf.dtype, device="meta")
    return memory.as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())


def _placed(kwargs: dict, device: str) -> dict:
    """Return keyword arguments that make tensors on another device."""
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return kwargs | ({"device": device} if _is_cuda(kwargs.get("device")) else {})
