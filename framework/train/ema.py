"""An exponential moving average of the weights, which is evaluated and kept instead of them.

Source of lookahead: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", 2019; as an
average whose decay rises over the run: hlb-CIFAR10 and Jordan, "94% on CIFAR-10 in 3.29 seconds on
a single GPU", 2024.
"""

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


_Pair = tuple[Tensor, Tensor]


def _columns(pairs: list[_Pair]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the first tensors of all pairs, and the second ones."""
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@final
class Average:
    """The moving average of a model's weights.

    Buffers, such as batch norm's statistics, are copied. With ``lookahead``, those that are floats
    are averaged like weights.

    Attributes:
        decay: The share of the old average that an optimizer step keeps, 0 to 1. An update after
            ``every`` steps keeps ``decay ** every``.
        every: Optimizer steps between updates.
        ramp: The power of the share of all steps done that multiplies what an update keeps. With 0
            all updates keep alike. Above 0, the average follows the weights at first.
        lookahead: Whether each update copies the average back into the model.
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float,
        every: int = 1,
        ramp: float = 0.0,
        lookahead: bool = False,
    ) -> None:
        self.model = model
        self.decay = decay
        self.every = every
        self.ramp = ramp
        self.lookahead = lookahead
        self._weights = [weight.detach().clone() for weight in model.parameters()]
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]

    @property
    def is_constant(self) -> bool:
        """Whether every step updates the average in the same way, so that a graph can repeat it."""
        return self.every == 1 and self.ramp == 0

    def update_after(self, step: int, total_steps: int) -> None:
        """Update the average if optimizer step ``step``, counted from 1, is due for it."""
        if step % self.every == 0:
            self.update(self.decay**self.every * (step / total_steps) ** self.ramp)

    @torch.no_grad()
    def update(self, kept: float | None = None) -> None:
        """Add the current weights in one fused operation. Never synchronizes.

        ``kept`` is the share of the old average that stays; None: ``decay``.
        """
        if kept is None:
            kept = self.decay
        averaged, copied = self._parts()
        averages, own = _columns(averaged)
        torch._foreach_lerp_(averages, own, 1 - kept)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as torch's own optimizers do
        if copied:
            torch._foreach_copy_(*_columns(copied))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        if self.lookahead:
            torch._foreach_copy_(own, averages)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    def _parts(self) -> tuple[list[_Pair], list[_Pair]]:
        """Return what is averaged and what is copied: pairs of the average's and the model's."""
        averaged = [
            (local(average), local(weight.detach()))
            for average, weight in zip(self._weights, self.model.parameters(), strict=True)
        ]
        copied: list[_Pair] = []
        for pair in zip(self._buffers, self.model.buffers(), strict=True):
            if self.lookahead and pair[0].is_floating_point():
                averaged.append(pair)
            else:
                copied.append(pair)
        return averaged, copied

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
