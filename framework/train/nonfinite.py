"""Numbers that are none any more: NaN and infinity, looked for and told of."""

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
    """Whether all weights and buffers are; ``but`` the buffers of these names may be infinite, and NaN where it says True. Reads the device once, and
    once for each of them.
    """
    but = but or {}
    buffers = {name: one for name, one in model.named_buffers() if one.is_floating_point()}
    own = [*model.parameters(), *(one for name, one in buffers.items() if name not in but)]
    numbers = all(
        but[name] or not one.isnan().any() for name, one in buffers.items() if name in but
    )
    return numbers and are_finite([one.detach() for one in own if one.is_floating_point()])


def infinite_buffers(model: nn.Module) -> dict[str, bool]:
    """The names of buffers that hold infinity or NaN by design, as an attention's mask does, or what is not set yet; whether it is NaN."""
    buffers = {name: one for name, one in model.named_buffers() if one.is_floating_point()}
    return {name: bool(one.isnan().any()) for name, one in buffers.items() if not are_finite([one])}


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all elements are, by the largest magnitude: few operations for all. Reads the device once."""
    shards = [one for one in tensors if one.numel() and hasattr(one, "full_tensor")]
    others = [one for one in tensors if one.numel() and not hasattr(one, "full_tensor")]
    norms = [
        gathered(torch.nn.utils.get_total_norm(same, math.inf)) for same in (shards, others) if same
    ]
    return all(math.isfinite(norm) for norm in norms)


def gone_wrong(what: str, step: int, bad: Pass | None, parallel: Parallel) -> PacelineError:
    """What to raise, asked on all ranks at once; ``bad``: this rank's first pass whose loss is not finite. The rank that met it first says in
    which records (N101), the others that it does (P104).
    """
    steps = [
        float(first)
        for first in parallel.gather(
            torch.tensor([math.inf if bad is None else bad.step], dtype=torch.float64)
        )
    ]
    if steps.index(min(steps)) != parallel.rank:
        return DistributedError(
            104, f"step {step}", what, "the rank that met it first names the records"
        )
    return NumericError(101, f"step {step}" if bad is None else bad.where, what, FIX)


def too_many(progress: Progress) -> NumericError:
    """Steps in a row that changed nothing."""
    what = f"the gradients of {progress.missed} steps in a row were not finite"
    return NumericError(
        102, f"step {progress.step + 1}", what, "lower optim.lr, set clip_norm, or look at the data"
    )
