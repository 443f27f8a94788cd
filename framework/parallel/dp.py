"""nn.DataParallel: one process with a thread per GPU, which copies the model in every step.

Kept for comparison: ddp is faster, and synchronizes batch norm.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from framework.contracts.parallel import Parallel


@final
class _Replicas(nn.DataParallel[nn.Module]):
    """Replicas in the autocast type of the caller: torch tells threads only that there is one."""

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Any, kwargs: Any) -> list[Any]:
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            replicas = [torch.autocast("cuda", dtype)(replica) for replica in replicas]  # pyright: ignore[reportAssignmentType]
        return super().parallel_apply(replicas, inputs, kwargs)


@final
class DataParallel(Parallel):
    """All GPUs of this machine; with fewer than two, one replica and a note."""

    graph_refusal = "a step of several replicas is not captured"
    objective_refusal = "parallel=dp copies only the model to the GPUs"
    phase_refusal = "parallel=dp copies the model to the GPUs only if all of it is called"

    def __init__(self, *, device: torch.device) -> None:
        super().__init__(device=device)
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
        self.notes = (note,)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.num_replicas < 2:
            return model
        first = self.device.index or 0  # it keeps the model and gathers, and must be named first
        others = [number for number in range(self.num_replicas) if number != first]
        return _Replicas(model, [first, *others])

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, nn.DataParallel) else model
