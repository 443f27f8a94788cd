"""Find NaN and infinity in weights and losses, and say where they came from."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from framework.contracts.parallel import Parallel
from framework.errors import DistributedError, NumericError, PacelineError
from framework.train.ema import gathered
from framework.train.metrics import Pass, Progress

FIX = "lower optim.lr, set clip_norm, leave such steps out (on_nan=skip), or look at the data"


def all_finite(model: nn.Module, but: Mapping[str, bool] | None = None) -> bool:
    """Return whether all weights and buffers are finite.

    Reads the device once, and once more for each buffer in ``but``.

    Args:
        model: Its weights and buffers are checked.
        but: Buffers that may be infinite, by name; True if they may also be NaN.

    """
    but = but or {}
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

    Reads the device once.
    """
    filled = [tensor for tensor in tensors if tensor.numel()]
    shards = [tensor for tensor in filled if hasattr(tensor, "full_tensor")]
    plain = [tensor for tensor in filled if not hasattr(tensor, "full_tensor")]
    groups = [group for group in (shards, plain) if group]
    norms = [gathered(torch.nn.utils.get_total_norm(group, math.inf)) for group in groups]
    return all(math.isfinite(norm) for norm in norms)


def gone_wrong(what: str, step: int, bad: Pass | None, parallel: Parallel) -> PacelineError:
    """Return the error to raise. All ranks call it together.

    The rank that met the first bad loss names its records (N101); the others point to it (P104).

    Args:
        what: What is wrong.
        step: The current optimizer step.
        bad: This rank's first pass whose loss is not finite, or None.
        parallel: Gathers the steps of all ranks.

    """
    mine = torch.tensor([math.inf if bad is None else bad.step], dtype=torch.float64)
    steps = [float(first) for first in parallel.gather(mine)]
    if steps.index(min(steps)) != parallel.rank:
        fix = "the rank that met it first names the records"
        return DistributedError(104, f"step {step}", what, fix)
    where = f"step {step}" if bad is None else bad.where
    return NumericError(101, where, what, FIX)


def too_many(progress: Progress) -> NumericError:
    """Return the error for too many steps in a row that changed nothing."""
    what = f"the gradients of {progress.missed} steps in a row were not finite"
    fix = "lower optim.lr, set clip_norm, or look at the data"
    return NumericError(102, f"step {progress.step + 1}", what, fix)
