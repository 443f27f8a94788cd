"""nn.DataParallel: one process, a thread per GPU, the model replicated anew at every step. Kept for comparison; ddp is faster.

It knows no synchronized batch norm, and each GPU sees its own slice's statistics.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.parallel.gather_state import UnshardedState

_NOTHING = nullcontext()


@final
class _Replicas(nn.DataParallel[nn.Module]):
    """Its threads know that the caller is in autocast, but not of which type: that is a thread's own, and fp16 where nobody says so."""

    def parallel_apply(
        self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return super().parallel_apply(
            [_in_autocast(one, dtype) for one in replicas], inputs, kwargs
        )


def _in_autocast(replica: nn.Module, dtype: torch.dtype | None) -> Any:
    def forward(*inputs: Any, **kwargs: Any) -> Any:
        with torch.amp.autocast("cuda", dtype, enabled=dtype is not None):
            return replica(*inputs, **kwargs)

    return forward


@final
class DataParallel(UnshardedState):
    """All GPUs of this machine; with fewer than two, one replica and a note."""

    rank = 0
    world_size = 1

    def __init__(self, *, device: torch.device) -> None:
        self.device = device
        self.num_replicas = torch.cuda.device_count() if device.type == "cuda" else 1
        one = f"parallel=dp: {self.num_replicas} device here, so one replica; it does the work of parallel=none"
        more = "parallel=dp copies the model to every GPU at every step, and batch norm sees each GPU's share alone; parallel=ddp does neither"
        self.notes: tuple[str, ...] = (one if self.num_replicas < 2 else more,)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.num_replicas < 2:
            return model
        first = self.device.index or 0  # it keeps the model, gathers, and must be named first
        return _Replicas(
            model, [first, *(number for number in range(self.num_replicas) if number != first)]
        )

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
