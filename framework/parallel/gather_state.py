"""What a choice of parallel says of states where every process has whole tensors."""

from typing import Any

import torch
from torch import nn


class UnshardedState:
    """Nothing is sharded."""

    device: torch.device

    @property
    def home(self) -> torch.device:
        return self.device

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        return state
