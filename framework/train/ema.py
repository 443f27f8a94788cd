"""An exponential moving average of the weights, which is evaluated and kept instead of them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

# importing torch's DTensor takes a second, so sharded tensors are known by their methods


def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, or a plain tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor, or a plain tensor itself.

    All ranks call it together.
    """
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


@final
class Average:
    """The moving average of a model's weights.

    Buffers, such as batch norm's statistics, are copied.

    Args:
        model: Holds the weights.
        decay: The share of the old average that each optimizer step keeps, 0 to 1.

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
        for average, own in zip(self._averages(), self._own(), strict=True):
            kept = local(own.detach()).clone()
            local(own.detach()).copy_(local(average))
            local(average).copy_(kept)

    def _averages(self) -> list[Tensor]:
        return [*self._weights, *self._buffers]

    def _own(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def state_dict(self) -> dict[str, Any]:
        """Return the average under the model's names."""
        pairs = zip(self._own(), self._averages(), strict=True)
        average_of = {id(own): average for own, average in pairs}
        own_state = self.model.state_dict(keep_vars=True)
        return {name: average_of.get(id(value), value) for name, value in own_state.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load an average. KeyError or RuntimeError if it belongs to another model."""
        for name, average in self.state_dict().items():
            if isinstance(average, Tensor):
                local(average).copy_(local(state[name]))
