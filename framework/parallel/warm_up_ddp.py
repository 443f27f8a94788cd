"""Let DDP arrange its buckets before the first step."""

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.parallel import Precision
from framework.contracts.training import Objective
from framework.parallel.ddp import check_gradients, explained
from framework.system.rng import kept_generators


def warm_up_ddp(
    model: nn.Module, objective: Objective, precision: Precision, batch: Batch, device: torch.device
) -> None:
    """Run one forward and backward pass that changes neither the model nor the random generators.

    After its first pass DDP rearranges its buckets by the order in which gradients arrive. The sums
    of three ranks depend on that, and a resumed run must add in the same order from its first step
    on. All ranks must call this together, with the wrapped model and a batch as in a step.

    ConfigError C146 if a gradient is missing.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    with kept_generators(device), explained(model):
        with precision.autocast():
            loss = objective(model, batch).loss
        loss.backward()
    check_gradients(model)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
