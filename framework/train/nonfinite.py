"""Find NaN and infinity in weights and losses, and say where they came from."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from framework.contracts.parallel import Parallel
from framework.errors import DistributedError, NumericError, PacelineError
from framework.train.ema import is_sharded
from framework.train.metrics import PassPlace, Progress

FIX = "lower optim.lr, set clip_norm, or look at the data"
SKIP = "leave such steps out (on_nan=skip), lower optim.lr, set clip_norm, or look at the data"


def all_finite(model: nn.Module, but: Mapping[str, bool]) -> bool:
    """Return whether all weights and buffers are finite.

    ``but`` names buffers that may be infinite, with True if they may also be NaN. Reads the device
    once, and once more for each of these.
    """
    weights = [weight.detach() for weight in model.parameters() if weight.is_floating_point()]
    for name, buffer in _float_buffers(model).items():
        if name not in but:
            weights.append(buffer)
        elif not but[name] and buffer.isnan().any():
            return False
    return are_finite(weights)


def infinite_buffers(model: nn.Module) -> dict[str, bool]:
    """Return the names of buffers that are not finite from the start, and whether they hold NaN.

    Some are so by design, as an attention mask is, and others are not set yet.
    """
    buffers = _float_buffers(model).items()
    return {
        name: bool(buffer.isnan().any()) for name, buffer in buffers if not are_finite([buffer])
    }


def _float_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all elements are finite, from one norm over all tensors.

    Reads the device once. Sharded tensors have a norm of their own, which all ranks gather.
    """
    filled = [tensor for tensor in tensors if tensor.numel()]
    norms: list[Tensor] = []
    if shards := [tensor for tensor in filled if is_sharded(tensor)]:
        total: Any = torch.nn.utils.get_total_norm(shards, math.inf)
        norms.append(total.full_tensor())
    if plain := [tensor for tensor in filled if not is_sharded(tensor)]:
        norms.append(torch.nn.utils.get_total_norm(plain, math.inf))
    return all(math.isfinite(norm) for norm in norms)


def gone_wrong(what: str, step: int, bad: PassPlace | None, parallel: Parallel) -> PacelineError:
    """Return the error to raise at ``step``. All ranks call it together.

    The rank that met the first ``bad`` loss names its records (N101). Others point to it (P104).
    """
    where = f"step {step}"
    mine = torch.tensor([math.inf], dtype=torch.float64)
    if bad is not None:
        mine[0] = bad.step
    steps = [float(first) for first in parallel.gather(mine)]
    if steps.index(min(steps)) != parallel.rank:
        return DistributedError(104, where, what, "the rank that met it first names the records")
    if bad is not None:
        where = bad.where
    # A weight that has become infinite stays so, whatever steps are left out.
    return NumericError(101, where, what, FIX if bad is None or "weight" in what else SKIP)


def too_many(progress: Progress) -> NumericError:
    """Return the error for too many steps in a row that changed nothing."""
    what = f"the gradients of {progress.missed} steps in a row were not finite"
    return NumericError(102, f"step {progress.step + 1}", what, FIX)
