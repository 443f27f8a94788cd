"""nn.DataParallel: one process with a thread per GPU, which copies the model in every step.

Kept for comparison: ddp is faster. Batch norm is not synchronized, so each GPU uses the statistics
of its own slice.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from framework.parallel.defaults import SingleProcess


@final
class _Replicas(nn.DataParallel[nn.Module]):
    """Replicas that compute in the autocast type of the caller.

    torch passes on to the threads that autocast is enabled, but not its type.
    """

    def parallel_apply(
        self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        typed = [_in_autocast(replica, dtype) for replica in replicas]
        return super().parallel_apply(typed, inputs, kwargs)


def _in_autocast(replica: nn.Module, dtype: torch.dtype | None) -> Any:
    def forward(*inputs: Any, **kwargs: Any) -> Any:
        with torch.amp.autocast("cuda", dtype, enabled=dtype is not None):
            return replica(*inputs, **kwargs)

    return forward


@final
class DataParallel(SingleProcess):
    """All GPUs of this machine; with fewer than two, one replica and a note."""

    graph_refusal = "a step of several replicas is not captured"
    objective_refusal = "parallel=dp copies only the model to the GPUs"

    def __init__(self, *, device: torch.device) -> None:
        self.device = device
        self.num_replicas = torch.cuda.device_count() if device.type == "cuda" else 1
        note = (
            "parallel=dp copies the model to every GPU in every step, and batch norm sees only the "
            "share of each GPU; parallel=ddp does neither"
        )
        if self.num_replicas < 2:
            note = (
                f"parallel=dp: {self.num_replicas} device here, so one replica; "
                "it does the work of parallel=none"
            )
        self.notes: tuple[str, ...] = (note,)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.num_replicas < 2:
            return model
        first = self.device.index or 0  # it keeps the model and gathers, and must be named first
        others = [number for number in range(self.num_replicas) if number != first]
        return _Replicas(model, [first, *others])

    def unwrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, nn.DataParallel):
            return model.module
        return model
