"""One replica in this process."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

NOTHING = nullcontext()


class NoParallel:
    """The model as it is, in one process that communicates with no other."""

    rank = 0
    world_size = 1
    graph_refusal: str | None = None
    objective_refusal: str | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, *, device: torch.device) -> None:
        self.device = device

    @property
    def home(self) -> torch.device:
        return self.device

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def rewrap(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        return state

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return NOTHING

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

    def time_exchanges(self, mark: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass
