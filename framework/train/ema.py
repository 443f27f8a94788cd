"""An exponential moving average of the weights, for evaluation and for keeping."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn


def local(tensor: Tensor) -> Tensor:
    """What this process has of it: a shard's own memory, or all of a tensor that is not sharded."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def gathered(tensor: Tensor) -> Tensor:
    """All of it: a shard's whole, from all ranks, which must ask together; any other tensor itself."""
    full_tensor = getattr(
        tensor, "full_tensor", None
    )  # not isinstance: to import DTensor takes a second, of every command
    return tensor if full_tensor is None else full_tensor()


@final
class Average:
    """Of ``model``'s weights. ``decay``: the share of the old average at each optimizer step. Buffers (batch norm's statistics) are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self._weights = [one.detach().clone() for one in model.parameters()]
        self._buffers = [one.detach().clone() for one in model.buffers()]

    @torch.no_grad()
    def update(self) -> None:
        """Take the model's weights in; one fused operation for all of them. Never synchronizes."""
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as torch's own optimizers do
            [local(one) for one in self._weights],
            [local(one.detach()) for one in self.model.parameters()],
            1 - self.decay,
        )
        for mine, theirs in zip(self._buffers, self.model.buffers(), strict=True):
            mine.copy_(theirs)

    @contextmanager
    def applied(self) -> Generator[None, None, None]:
        """Inside, the model has the average for its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        own = (*self.model.parameters(), *self.model.buffers())
        for mine, theirs in zip((*self._weights, *self._buffers), own, strict=True):
            kept = local(theirs.detach()).clone()
            local(theirs.detach()).copy_(local(mine))
            local(mine).copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """By the model's names."""
        own = [*self.model.parameters(), *self.model.buffers()]
        kept = {
            id(theirs): mine
            for theirs, mine in zip(own, [*self._weights, *self._buffers], strict=True)
        }
        return {
            name: kept.get(id(value), value)
            for name, value in self.model.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """KeyError, RuntimeError where ``state`` is another model's."""
        for name, mine in self.state_dict().items():
            if isinstance(mine, Tensor):
                local(mine).copy_(local(state[name]))
