"""A batch of records, and the operations on a whole batch.

A batch is a plain dict of fields. A field is a tensor whose leading dimension is B, or any other
value, such as a list of B strings. Other values are not moved, pinned, counted or captured: they
reach the augmentation and the objective unchanged.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.system.page_locked import block

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


class _FieldPlace(NamedTuple):
    """Where a field lies in a block."""

    start: int  # byte
    dtype: torch.dtype
    shape: torch.Size


@final
class PinnedBatch(Batch):
    """A batch in page-locked memory whose fields share one block, so that one copy moves them.

    Attributes:
        block: The bytes of the fields, uint8 [n].
        places: Where the fields of the block lie. Other fields lie elsewhere.
    """

    def __init__(self, batch: Batch, block: Tensor, places: dict[str, _FieldPlace]) -> None:
        super().__init__(batch)
        self.block = block
        self.places = places


def move(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on ``device``, copied asynchronously on the current stream if it is pinned.

    Tensors that are already on ``device`` are not copied. Fields of one block become views of its
    copy.
    """
    result = dict(batch)
    if isinstance(batch, PinnedBatch) and device.type == "cuda":
        copy = batch.block.to(device, non_blocking=True)
        for name, (start, dtype, shape) in batch.places.items():
            stop = start + shape.numel() * dtype.itemsize
            result[name] = copy[start:stop].view(dtype).view(shape)
    for name, value in result.items():
        if isinstance(value, Tensor) and value.device != device:
            result[name] = value.to(device, non_blocking=True)
    return result


def pin(batch: Batch) -> Batch:
    """Return the batch in page-locked memory, which a GPU can copy while it computes.

    The tensors share one block, except ``index``: the training keeps it until the next report, and
    must not keep the images with it.
    """
    result = dict(batch)
    places: dict[str, _FieldPlace] = {}
    for name, value in batch.items():
        if isinstance(value, Tensor) and not value.is_cuda:
            result[name] = value.pin_memory() if name == "index" else _in_block(value)
            start = block.start_of(result[name])
            if start is not None:
                places[name] = _FieldPlace(start, value.dtype, value.shape)
    used = block.end()
    if used is None or not places:
        return result
    return PinnedBatch(result, used, places)


def _in_block(tensor: Tensor) -> Tensor:
    """Return a tensor in page-locked memory: in this thread's block if it is not locked yet."""
    if block.start_of(tensor) is not None or tensor.is_pinned():
        return tensor
    if not tensor.is_contiguous():
        return tensor.pin_memory()
    return block.take(tuple(tensor.shape), tensor.dtype).copy_(tensor)
