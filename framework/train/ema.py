"""An exponential moving average of the weights, which is evaluated and kept instead of them."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard, final

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Return whether a tensor is a DTensor, known by its method: importing it takes a second."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, or a plain tensor itself."""
    if is_sharded(tensor):
        return tensor.to_local()
    return tensor


@final
class Average:
    """The moving average of a model's weights.

    Buffers, such as batch norm's statistics, are copied. ``decay``, 0 to 1, is the share of the
    old average that each optimizer step keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self._weights = [weight.detach().clone() for weight in model.parameters()]
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights in one fused operation. Never synchronizes."""
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as torch's own optimizers do
            [local(average) for average in self._weights],
            [local(weight.detach()) for weight in self.model.parameters()],
            1 - self.decay,
        )
        for average, buffer in zip(self._buffers, self.model.buffers(), strict=True):
            average.copy_(buffer)

    @contextmanager
    def applied(self) -> Generator[None]:
        """Give the model the average for its weights inside the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for own, average in self._pairs():
            mine = local(own.detach())
            kept = mine.clone()
            mine.copy_(local(average))
            local(average).copy_(kept)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the model's weights and buffers, each with its average."""
        own = (*self.model.parameters(), *self.model.buffers())
        return zip(own, (*self._weights, *self._buffers), strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the average under the model's names."""
        average_of = {id(own): average for own, average in self._pairs()}
        own_state = self.model.state_dict(keep_vars=True)
        return {name: average_of.get(id(value), value) for name, value in own_state.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load an average. KeyError or RuntimeError if it belongs to another model."""
        for name, average in self.state_dict().items():
            if isinstance(average, Tensor):
                local(average).copy_(local(state[name]))
