"""Fully sharded data parallel (torch's FSDP2), for models larger than a device.

Each rank keeps a shard of every weight, gradient and optimizer state.
"""

from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.tensor import DTensor, distribute_tensor

from framework.contracts.parallel import NOTHING
from framework.parallel.group import RankGroup
from framework.parallel.hang import Exchange


@final
class ShardedParallel(RankGroup):
    """One shard of the model per rank. Saved states are gathered, and fit every other choice.

    A module with ``unit_parameters`` or more is gathered when it computes, and then released.
    Smaller modules belong to the unit around them. The other arguments are those of ddp.
    """

    objective_refusal = "parallel=fsdp shards only the model"
    phase_refusal = "parallel=fsdp gathers the weights only if all of the model is called"

    def __init__(
        self,
        num_processes: int,
        sync_batch_norm: bool,
        timeout_s: float,
        unit_parameters: int,
        num_nodes: int = 1,
        endpoint: str | None = None,
        max_restarts: int = 0,
        *,
        device: torch.device,
    ) -> None:
        super().__init__("fsdp", timeout_s, sync_batch_norm, device)
        self.home = torch.device("cpu")  # the model may not fit on one device
        self.unit_parameters = unit_parameters

    def wrap(self, model: nn.Module) -> nn.Module:
        model = self.trainable(model)
        self.share_start(model)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        # A GPU waits in a stream, of which the host sees nothing. torch before 2.8 cannot be timed.
        is_timed = self.device.type == "cpu" and "set_custom_all_gather" in vars(FSDPModule)
        for unit in (*self._units(model), model):
            sharded = fully_shard(unit, mesh=mesh, reshard_after_forward=True)
            if is_timed:
                sharded.set_custom_all_gather(inside(self.exchange, collectives.DefaultAllGather))
                reduce = inside(self.exchange, collectives.DefaultReduceScatter)
                sharded.set_custom_reduce_scatter(reduce)
        return model

    def _units(self, model: nn.Module) -> list[nn.Module]:
        units: list[nn.Module] = []
        taken: set[int] = set()
        for module in reversed(list(model.modules())[1:]):
            own = {id(p): p.numel() for p in module.parameters() if id(p) not in taken}
            computes = type(module).forward is not nn.Module.forward  # a ModuleList does not
            if computes and sum(own.values()) >= self.unit_parameters:
                units.append(module)
                taken |= own.keys()
        return units

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        return NOTHING

    def gather_state(self, state: Any) -> Any:
        if isinstance(state, DTensor):
            return state.full_tensor().cpu()
        if isinstance(state, dict):
            return {name: self.gather_state(value) for name, value in state.items()}
        if isinstance(state, list):
            return [self.gather_state(value) for value in state]
        return state

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        parameters = [own for group in optimizer.param_groups for own in group["params"]]
        moments: dict[int, Any] = {}
        for number, values in state["optimizer"]["state"].items():
            like = parameters[number]
            moments[number] = {name: _shard(value, like) for name, value in values.items()}
        result = {**state, "optimizer": {**state["optimizer"], "state": moments}}
        weights = model.state_dict()
        for key in ("model", "average"):
            if state[key] is not None:
                pairs = state[key].items()
                result[key] = {name: _shard(value, weights[name]) for name, value in pairs}
        return result


def inside(exchange: Exchange, kind: Any) -> Any:
    """Return an exchange of torch's that takes place inside ``exchange``. ``kind`` is its class."""

    class Inside(kind):
        def __call__(self, *tensors: Any, **options: Any) -> Any:
            with exchange:
                return super().__call__(*tensors, **options)

    return Inside()


def _shard(value: Any, like: Tensor) -> Any:
    """Return this rank's shard of ``value`` if it has the shape of the sharded tensor ``like``."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
