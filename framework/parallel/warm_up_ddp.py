"""What an engine arranges after the first pass it sees, arranged before the first step."""

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.parallel import Precision
from framework.contracts.training import Objective
from framework.system.rng import generator_state, set_generator_state


def warm_up_ddp(
    model: nn.Module, objective: Objective, precision: Precision, batch: Batch, device: torch.device
) -> None:
    """One pass that changes nothing. DDP arranges its buckets anew after the first pass it sees, by when gradients arrive, and three ranks'
    sums depend on that; a run that is gone on with must add in the same order from its first step on.

    ``batch``: as in a step, on ``device``. All ranks must call this together.
    """
    buffers, generators = [one.clone() for one in model.buffers()], generator_state(device)
    with precision.autocast():
        loss = objective(model, batch).loss
    loss.backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for own, kept in zip(model.buffers(), buffers, strict=True):
            own.copy_(kept)
    set_generator_state(generators, device)
