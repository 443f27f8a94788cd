"""Shared behavior of the choices of parallel that do not shard, or that have one process."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

_NOTHING = nullcontext()


class UnshardedState:
    """Every process has whole tensors."""

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


class SingleProcess(UnshardedState):
    """There is one process, which communicates with no other."""

    rank = 0
    world_size = 1
    objective_refusal: str | None = None

    def rewrap(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return _NOTHING

    def total(self, sums: Tensor) -> Tensor:
        return sums

    def sum_on_device(self, sums: Tensor) -> Tensor:
        return sums

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]

    def agree(self, *flags: bool) -> list[bool]:
        return list(flags)

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass
