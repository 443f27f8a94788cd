"""Copies rows of ragged arrays side by side, or into a padded batch."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Ragged
from framework.system.native import find
from framework.system.page_locked import empty


def gather_rows(source: Tensor, starts: Tensor, sizes: Tensor) -> Tensor:
    """Return pieces of ``source`` one after another: uint8 [sum of sizes].

    Args:
        source: Bytes on the host, uint8 [n].
        starts: The first byte of each piece: int64 [B].
        sizes: The bytes of each piece: int64 [B].

    Raises:
        IndexError: A piece is not inside the source.
    """
    ends = sizes.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    if total > len(source) * max(1, len(sizes)):  # a damaged store must not exhaust the memory
        raise IndexError(f"pieces of {total} bytes of {len(source)}")
    result = torch.empty(total, dtype=torch.uint8)
    _copy(source, starts, sizes, ends - sizes, result)
    return result


def padded(ragged: Ragged) -> Tensor:
    """Return the arrays side by side, with zeros behind short ones: [B, longest, *rest]."""
    values = ragged.values
    lengths = ragged.lengths
    longest = int(lengths.max()) if len(lengths) else 0
    result = empty((len(lengths), longest, *values.shape[1:]), values.dtype).zero_()
    row_bytes = math.prod(values.shape[1:]) * values.element_size()
    sizes = lengths * row_bytes
    targets = torch.arange(len(lengths)) * (longest * row_bytes)
    _copy(_flat(values), sizes.cumsum(0) - sizes, sizes, targets, _flat(result))
    return result


def ragged_of(arrays: Sequence[np.ndarray], field: Field) -> Ragged:
    """Put the arrays of several records of a ragged field one after another."""
    empty = np.empty((0, *field.row_shape), field.dtype)
    lengths = torch.tensor([len(array) for array in arrays], dtype=torch.int64)
    return Ragged(torch.from_numpy(np.concatenate([empty, *arrays])), lengths)


def merged(parts: Sequence[tuple[Tensor, Ragged]]) -> Ragged:
    """Put arrays that were read from several places in the order of a batch.

    Each part comes with the places of its records in the batch: int64 [n].
    """
    places = torch.cat([places for places, _ in parts])
    values = torch.cat([part.values for _, part in parts])
    lengths = torch.cat([part.lengths for _, part in parts])
    return taken(Ragged(values, lengths), torch.argsort(places))


def taken(ragged: Ragged, places: Tensor) -> Ragged:
    """Return the arrays at ``places`` (int64 [n]), in that order."""
    values = ragged.values
    row_bytes = math.prod(values.shape[1:]) * values.element_size()
    sizes = ragged.lengths * row_bytes
    starts = sizes.cumsum(0) - sizes
    rows = gather_rows(_flat(values), starts[places], sizes[places])
    return Ragged(typed(rows, values.dtype, tuple(values.shape[1:])), ragged.lengths[places])


def typed(data: Tensor, dtype: torch.dtype, row_shape: tuple[int, ...]) -> Tensor:
    """Return bytes as rows: [total, *row_shape]."""
    return data.view(dtype).view(-1, *row_shape)


def _flat(values: Tensor) -> Tensor:
    # NumPy also views an array of no rows, which torch refuses.
    return torch.from_numpy(values.contiguous().numpy().reshape(-1).view(np.uint8))


def _copy(source: Tensor, starts: Tensor, sizes: Tensor, targets: Tensor, out: Tensor) -> None:
    starts, sizes, targets = starts.contiguous(), sizes.contiguous(), targets.contiguous()
    compiled = find("paceline_gather_rows")
    if compiled is None:
        _copy_by_torch(source, starts, sizes, targets, out)
        return
    places = starts.data_ptr(), sizes.data_ptr(), targets.data_ptr(), len(starts)
    if compiled(source.data_ptr(), len(source), *places, out.data_ptr(), len(out)):
        raise IndexError(f"pieces outside of {len(source)} bytes, or of {len(out)}")


def _copy_by_torch(
    source: Tensor, starts: Tensor, sizes: Tensor, targets: Tensor, out: Tensor
) -> None:
    triples = zip(starts.tolist(), sizes.tolist(), targets.tolist(), strict=True)
    for start, size, target in triples:
        if min(start, size, target) < 0 or start + size > len(source):
            raise IndexError(f"bytes {start} to {start + size} of {len(source)}")
        out[target : target + size] = source[start : start + size]
