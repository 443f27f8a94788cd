"""One replica in this process."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.parallel.gather_state import UnshardedState

_NOTHING = nullcontext()


@final
class NoParallel(UnshardedState):
    """The model as it is."""

    rank = 0
    world_size = 1
    notes: tuple[str, ...] = ()

    def __init__(self, *, device: torch.device) -> None:
        self.device = device

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return _NOTHING

    def total(self, sums: Tensor) -> Tensor:
        return sums

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]

    def agree(self, *flags: bool) -> list[bool]:
        return list(flags)

    def close(self) -> None:
        pass
