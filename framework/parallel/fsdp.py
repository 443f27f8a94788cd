"""Fully sharded data parallel (torch's FSDP2): each rank keeps a part of every weight, gradient and moment. For models larger than a device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from framework.parallel.group import RankGroup

_NOTHING = nullcontext()


@final
class ShardedParallel(RankGroup):
    """One part of the model per rank. A module of ``unit_parameters`` or more is gathered whole when it computes, then let go; what is smaller
    goes with what it is in. States are saved whole: they are those of every other choice.

    ``sync_batch_norm``, ``timeout_s``, and what who starts ranks reads (``num_processes``, ...), as in ddp.
    """

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
        self.unit_parameters = unit_parameters

    @property
    def home(self) -> torch.device:
        """The host: the model need not fit on one device."""
        return torch.device("cpu")

    def wrap(self, model: nn.Module) -> nn.Module:
        model = self.trainable(model)
        self.share_start(model)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for unit in (*self._units(model), model):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        return model

    def _units(self, model: nn.Module) -> list[nn.Module]:
        """Modules to be sharded by themselves, inner ones first."""
        found: list[nn.Module] = []
        taken: set[int] = set()
        for module in reversed(list(model.modules())[1:]):
            own = {id(one): one.numel() for one in module.parameters() if id(one) not in taken}
            computes = type(module).forward is not nn.Module.forward  # lists of modules do not
            if computes and sum(own.values()) >= self.unit_parameters:
                found.append(module)
                taken |= own.keys()
        return found

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        return _NOTHING

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return _each(state)

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        weights = model.state_dict()
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        moments = {
            number: {name: _part(value, parameters[number]) for name, value in values.items()}
            for number, values in state["optimizer"]["state"].items()
        }
        parts = {
            key: {name: _part(value, weights[name]) for name, value in (state[key] or {}).items()}
            for key in ("model", "average")
        }
        return {
            **state,
            **parts,
            "average": parts["average"] or None,
            "optimizer": {**state["optimizer"], "state": moments},
        }


def _each(node: Any) -> Any:
    """The same, its shards gathered to the host: on all ranks, which must ask together, in the same order."""
    if isinstance(node, DTensor):
        return node.full_tensor().cpu()
    if isinstance(node, dict):
        return {name: _each(value) for name, value in node.items()}
    return [_each(value) for value in node] if isinstance(node, list) else node


def _part(value: Any, like: Tensor) -> Any:
    """This rank's part of ``value``, cut as ``like`` is, where it is of that shape."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
