"""Steps taken, and sums and counts over passes and ranks, and only then means: uneven batches weigh what they hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from framework.contracts import Outcome


@dataclass
class Progress:
    """Where a run is. ``epoch_step``: optimizer steps of the present epoch; counted where they are taken, not where data is prepared."""

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    scheduled: int = 0


def detached(outcome: Outcome, counts: bool) -> Outcome:
    """The outcome without its graph; as nothing where its records do not count (fillers)."""
    if counts:
        outcome.loss = outcome.loss.detach()
        return outcome
    return Outcome(outcome.loss.detach(), {name: value * 0 for name, value in outcome.sums.items()}, 0)


def means(outcomes: Sequence[Outcome], total: Callable[[Tensor], Tensor]) -> tuple[dict[str, float], float]:
    """Loss and metrics per record, and the number of records, over ``outcomes`` of all ranks. Reads the device once per name."""
    counts = torch.tensor([outcome.count for outcome in outcomes], dtype=torch.float64)
    names = sorted(outcomes[0].sums)
    losses = torch.stack([outcome.loss for outcome in outcomes]).cpu().double()
    sums = [torch.cat([outcome.sums[name].reshape(-1) for outcome in outcomes]).cpu().double().sum() for name in names]
    *totals, count = total(torch.stack([(losses * counts).sum(), *sums, counts.sum()])).tolist()
    return {name: value / count for name, value in zip(["loss", *names], totals, strict=True)}, count
