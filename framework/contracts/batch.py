"""A batch of records, and the operations on a whole batch.

A batch is a plain dict of fields. A field is a tensor whose leading dimension is B, or any other
value, such as a list of B strings. Tensors inside a dict, list or tuple are moved and pinned, too.
Fields that are `Pieces` of page-locked memory become tensors when they are moved. Everything else
reaches augment and objective unchanged. Only tensors at the top are counted or captured.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor

from framework.system.memory import Pieces, block, stream_aside

Batch = dict[str, Any]
NESTS = (Tensor, dict, list, tuple)


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Return the fields that are tensors."""
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def num_records(batch: Batch) -> int:
    """Return how many records a batch has: as many as its ``index``, or else its first tensor."""
    index = batch.get("index")
    if index is None:
        index = next(iter(tensors(batch).values()), ())
    return len(index)


def leaves(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch or another nest of dicts, lists and tuples.

    A nested tensor is its values, its offsets and perhaps its lengths.
    """
    if isinstance(value, Tensor):
        yield from _parts(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif _may_hold_tensors(value):
        for item in value:
            yield from leaves(item)


def _parts(value: Any) -> list[Tensor]:
    if not value.is_nested:
        return [value]
    parts = [value.values(), value.offsets(), value.lengths()]
    return [part for part in parts if part is not None]


def _may_hold_tensors(value: Any) -> bool:
    # Most lists hold B strings or numbers, and only their first one is looked at.
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], NESTS)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a nest whose tensors are changed."""
    if isinstance(value, Tensor) and value.is_nested:
        values, offsets, *lengths = map(change, _parts(value))
        return torch.nested.nested_tensor_from_jagged(values, offsets, next(iter(lengths), None))
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(item, change) for name, item in value.items()}
    if not _may_hold_tensors(value):
        return value
    items = [mapped(item, change) for item in value]
    if hasattr(value, "_fields"):  # a NamedTuple takes them one by one
        return type(value)(*items)
    return type(value)(items)


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
    forms: list[str] = []
    for name, value in batch.items():
        form = type(value).__name__
        if isinstance(value, Tensor):
            form = str(tuple(value.shape[1:]))
        elif isinstance(value, list | tuple):
            form += f" of {len(value)}"
        if isinstance(name, str) and name != "index":
            forms.append(f"{name} {form}")
    return ", ".join(forms)


@final
class PinnedBatch(Batch):
    """A batch in page-locked memory whose fields share one block, so that one copy moves them.

    Attributes:
        block: The bytes of the fields, uint8 [n].
        places: Where fields lie in the block: the first byte, the dtype and the shape.
    """

    def __init__(
        self, batch: Batch, block: Tensor, places: dict[str, tuple[int, torch.dtype, torch.Size]]
    ) -> None:
        super().__init__(batch)
        self.block = block
        self.places = places


def move(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on ``device``, copied asynchronously on the current stream if it is pinned.

    Tensors that are already on ``device`` are not copied. Fields of one block become views of its
    copy. A batch with ``Pieces`` is copied on another stream if the current one is the default.
    """
    if not any(isinstance(value, Pieces) for value in batch.values()):
        return _moved(batch, device)
    current = torch.cuda.current_stream(device)
    if current.cuda_stream:
        return _moved(batch, device)
    # All fields take this way: a small copy of another stream might wait until the GPU's one engine
    # for copies from the host is done with the pieces of the next batch.
    aside = stream_aside(device)
    with torch.cuda.stream(aside):
        result = _moved(batch, device)
    current.wait_stream(aside)
    for tensor in leaves(result):
        tensor.record_stream(current)
    return result


def _moved(batch: Batch, device: torch.device) -> Batch:
    result = dict(batch)
    if isinstance(batch, PinnedBatch) and device.type == "cuda":
        copy = batch.block.to(device, non_blocking=True)
        for name, (start, dtype, shape) in batch.places.items():
            stop = start + shape.numel() * dtype.itemsize
            result[name] = copy[start:stop].view(dtype).view(shape)
    for name, value in result.items():
        if isinstance(value, Tensor):
            if value.device != device:  # the usual case, without a call
                result[name] = value.to(device, non_blocking=True)
        elif isinstance(value, Pieces):
            result[name] = value.to(device)
        elif isinstance(value, NESTS):
            result[name] = mapped(value, lambda part: part.to(device, non_blocking=True))
    return result


def size_bytes(batch: Batch) -> int:
    """Return the bytes of a batch's tensors."""
    pieces = (value for value in batch.values() if isinstance(value, Pieces))
    return sum(part.nbytes for part in (*leaves(batch), *pieces))


def pin(batch: Batch) -> Batch:
    """Return the batch in page-locked memory, which a GPU can copy while it computes.

    The tensors share one block, except ``index``, which the training keeps until its next report.
    """
    result = dict(batch)
    places: dict[str, tuple[int, torch.dtype, torch.Size]] = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.is_nested:
            result[name] = mapped(value, _pinned)
        elif not value.is_cuda:
            is_pinned = block.start_of(value) is not None or value.is_pinned()
            if name == "index" or not (is_pinned or value.is_contiguous()):
                result[name] = value.pin_memory()
            elif not is_pinned:
                result[name] = block.take(tuple(value.shape), value.dtype).copy_(value)
            start = block.start_of(result[name])
            if start is not None:
                places[name] = (start, value.dtype, value.shape)
    used = block.end()
    if used is None or not places:
        return result
    return PinnedBatch(result, used, places)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cuda else tensor.pin_memory()
