"""An exponential moving average of the weights, for evaluation and for keeping."""

import copy
from typing import Any, final

import torch
from torch import nn


@final
class Average:
    """``decay``: the share of the old average at each optimizer step. Buffers (batch norm's statistics) are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take the model's weights in; one fused operation for all of them. Never synchronizes."""
        weights = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as torch's own optimizers do
            [p.detach() for p in self.model.parameters()], weights, 1 - self.decay
        )
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)
