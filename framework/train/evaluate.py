"""One pass over a split, without learning."""

import torch
from torch import nn

from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective
from framework.system.rng import kept_generators
from framework.train.metrics import Tally


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Loader,
    objective: Objective,
    precision: Precision,
    clock: Clock,
    parallel: Parallel,
) -> tuple[dict[str, float], float]:
    """Return loss and metrics per record, and the number of records, over all ranks.

    ``model`` stays in evaluation mode. The random generators are restored afterwards, so that
    learning does not depend on how often a run validates.
    """
    model.eval()
    tally = Tally()
    clock.skip()
    with kept_generators(parallel.device):
        for batch, weight, _ in loader.epoch(0):
            with precision.autocast():
                outcome = objective(model, batch)
            clock.mark("forward")
            tally.add(outcome, weight > 0, 0, None)
            clock.mark("report")
    return tally.means(parallel.total)
