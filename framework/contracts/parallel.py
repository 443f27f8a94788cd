"""Contracts for parallel and precision: how many replicas compute, and with which numbers."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Parallel(Protocol):
    """How many replicas, and how they talk."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def home(self) -> torch.device:
        """Where the model is made, and tried on a few records, before it is wrapped."""
        ...

    @property
    def graph_refusal(self) -> str | None:
        """Why a step cannot be captured as a CUDA graph; None if it can."""
        ...

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, replicated or cut into parts; it is on ``home``."""
        ...

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's model inside: its ``state_dict`` has the plain names."""
        ...

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same with plain tensors, whatever is cut into parts; asked on all ranks at once."""
        ...

    def parted(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """A whole state of a Stepper (``model``, ``average``, ``optimizer``) cut into this rank's parts; asked on all ranks at once."""
        ...

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch: gradients are exchanged in the last one only."""
        ...

    def total(self, sums: Tensor) -> Tensor:
        """Element-wise sum over all ranks; host float64 in, host float64 out."""
        ...

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's ``values`` [n], in the ranks' order; n may differ. Host in, host out."""
        ...

    def agree(self, *flags: bool) -> list[bool]:
        """Each True on every rank at the same call once any rank said True; called once per step, always with as many."""
        ...

    def close(self) -> None: ...


class Precision(Protocol):
    """How numbers are computed and stepped."""

    def autocast(self) -> AbstractContextManager[Any]: ...

    def backward(self, loss: Tensor) -> None: ...

    def step(
        self, optimizer: torch.optim.Optimizer, clip_norm: float | None, skip_bad: bool = False
    ) -> bool:
        """Unscale, clip, step, in this order. False: the weights did not move, because a scaled gradient overflowed or, with ``skip_bad``,
        because a gradient is not finite.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
