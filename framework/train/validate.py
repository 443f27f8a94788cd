"""Evaluate a model: one pass over the validation data that does not change the weights."""

from contextlib import closing

import torch
from torch import nn

from framework.contracts.loader import Clock, Epochs
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective
from framework.system.rng import kept_generators
from framework.train.metrics import Tally


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Epochs,
    objective: Objective,
    precision: Precision,
    clock: Clock,
    parallel: Parallel,
) -> tuple[dict[str, float], float]:
    """Return the mean loss and the metrics of the records of all ranks, and their number.

    The model is left in evaluation mode; the caller switches it back. The random generators are
    restored afterwards, so that learning does not depend on how often a run validates.
    """
    model.eval()
    tally = Tally(objective, drops_bad=False)
    clock.skip()  # The time since the last validation does not count.
    with kept_generators(parallel.device), closing(loader.epoch(0)) as batches:
        for batch, weight, _ in batches:
            with precision.autocast():
                outcome = objective(model, batch)
            clock.mark("forward")
            # A weight of 0 marks a filler: its records do not count.
            tally.add(outcome, counts=weight > 0, step=0, index=None)
            clock.mark("report")
    return tally.means(parallel.total)
