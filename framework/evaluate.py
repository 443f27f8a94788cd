"""One pass over a split, without learning."""

import torch
from torch import nn

from framework.contracts import Clock, Loader, Objective, Parallel, Precision
from framework.generators import generator_state, set_generator_state
from framework.tally import Tally


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: Loader, objective: Objective, precision: Precision, clock: Clock, parallel: Parallel
) -> tuple[dict[str, float], float]:
    """Loss and metrics per record, and the number of records, over all ranks. ``model`` is left in evaluation.

    What is drawn in it does not move the generators: what is learned does not depend on how often it was looked at.
    """
    generators = generator_state(parallel.device)
    model.eval()
    tally = Tally()
    clock.skip()
    for batch, weight, _ in loader.epoch(0):
        with precision.autocast():
            outcome = objective(model, batch)
        clock.mark("forward")
        tally.add(outcome, weight > 0, 0, None)
        clock.mark("report")
    set_generator_state(generators, parallel.device)
    return tally.means(parallel.total)
