"""Exchanges of gradients and buffers among ranks, for what no wrap of the model exchanges."""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.contracts.parallel import Parallel


def average_gradients(weights: Sequence[Tensor], parallel: Parallel) -> None:
    """Give all ranks the mean of their gradients. One that a rank lacks is 0, unless all do.

    There is one exchange for each dtype. Only ranks that lack a gradient wait for the device.
    """
    if parallel.world_size == 1 or not weights:
        return
    own: list[Tensor] = []
    for weight in weights:
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        own.append(gradient.to_dense() if gradient.is_sparse else gradient)
    own += [weight.new_full((1,), weight.grad is not None) for weight in weights]
    sums = _sums(own, parallel)
    for weight, total, number in zip(weights, sums, sums[len(weights) :], strict=False):
        if weight.grad is not None or number.item() > 0:
            weight.grad = total / parallel.world_size


@torch.no_grad()
def take_from_first(tensors: Sequence[Tensor], parallel: Parallel) -> None:
    """Give the tensors of all ranks, such as buffers, the values of rank 0."""
    if parallel.world_size == 1:
        return
    given = [tensor if parallel.rank == 0 else torch.zeros_like(tensor) for tensor in tensors]
    for tensor, total in zip(tensors, _sums(given, parallel), strict=True):
        tensor.copy_(total)


def _sums(tensors: Sequence[Tensor], parallel: Parallel) -> list[Tensor]:
    """Return the sums over all ranks, of one exchange for each dtype."""
    result = list(tensors)
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[place].detach().flatten() for place in places])
        flat = parallel.sum_on_device(flat.byte() if dtype == torch.bool else flat)
        pieces = flat.to(dtype).split([tensors[place].numel() for place in places])
        for place, piece in zip(places, pieces, strict=True):
            result[place] = piece.view_as(tensors[place])
    return result
