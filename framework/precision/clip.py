"""The gradients of an optimizer's parameters."""

import torch
from torch import Tensor


def gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the gradients of all parameters that have one."""
    return [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def clip(optimizer: torch.optim.Optimizer, clip_norm: float) -> None:
    """Scale the gradients down to a total norm of ``clip_norm``, without a synchronization."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
