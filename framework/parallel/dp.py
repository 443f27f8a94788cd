"""nn.DataParallel: one process, a thread per GPU, the model replicated anew at every step. Kept for comparison; ddp is faster.

It knows no synchronized batch norm, and each GPU sees its own slice's statistics.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.parallel.whole import Whole

_NOTHING = nullcontext()


@final
class DataParallel(Whole):
    """All GPUs of this machine; with fewer than two, one replica and a note."""

    rank = 0
    world_size = 1

    def __init__(self, *, device: torch.device) -> None:
        self.device = device
        self.num_replicas = torch.cuda.device_count() if device.type == "cuda" else 1
        one = f"parallel=dp: {self.num_replicas} device here, so one replica; it does the work of parallel=none"
        self.notes: tuple[str, ...] = (one,) if self.num_replicas < 2 else ()

    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.DataParallel(model) if self.num_replicas > 1 else model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, nn.DataParallel) else model

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
