"""Contracts for parallel and precision: how many replicas compute, and with which numbers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

NOTHING = nullcontext()


class Parallel:
    """How many replicas compute, and how they communicate. This one is alone in its process.

    Attributes:
        device: On which this rank computes.
        home: The device on which the model is built and tried before ``wrap``.
        notes: What the user should know about this choice on this machine; printed once.
        graph_refusal: Why a step cannot be captured as a CUDA graph; None if it can.
        objective_refusal: Why an objective can own no weights and no state; None if it can.
        phase_refusal: Why an objective can have no phases; None if it can.
    """

    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = ()
    graph_refusal: str | None = None
    objective_refusal: str | None = None
    phase_refusal: str | None = None

    def __init__(self, *, device: torch.device) -> None:
        self.device = self.home = device

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model, replicated or sharded. The given model is on ``home``."""
        return model

    def share(self, model: nn.Module) -> nn.Module:
        """Return the model, in place of ``wrap``, for an objective that calls parts of it.

        It is not wrapped: all ranks begin alike, and whoever trains it exchanges the gradients.
        """
        return model

    def rewrap(self, model: nn.Module) -> nn.Module:
        """Return a wrapped model, in a new wrap if other parameters now need gradients.

        All ranks must call this at the same time, between two steps.
        """
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's model inside, whose ``state_dict`` has the plain names."""
        return model

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return ``state``, a nested dict, with every sharded tensor gathered into a plain one.

        All ranks must call this at the same time.
        """
        return state

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """Return the gathered ``state`` with this rank's shard of every tensor that is sharded.

        All ranks must call this at the same time, with the wrapped model and its optimizer.
        """
        return state

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Return the context for forward and backward of one micro-batch.

        Ranks exchange gradients only in the ``last`` micro-batch of a step.
        """
        return NOTHING

    def total(self, sums: Tensor) -> Tensor:
        """Return the elementwise sum over all ranks. Takes and returns a host float64 tensor."""
        return sums

    def sum_on_device(self, sums: Tensor) -> Tensor:
        """Return the elementwise sum over all ranks of a tensor on the device, without waiting."""
        return sums

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the ``values`` (host tensors [n]; n may differ) of all ranks in rank order."""
        return [values]

    def agree(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any rank has set it, at the same call on every rank.

        Call this once per step, with the same number of flags. The answer may come calls later.
        """
        return list(flags)

    def wait(self) -> None:
        """Wait, on the host, until every rank has called this: up to an hour for rank 0.

        Rank 0 may save before it calls this. It comes last, and waits for the others no longer
        than in any exchange, so that a rank that hangs is given up.
        """

    def time_exchanges(self, mark: Callable[[str], None]) -> None:
        """Call ``mark`` with ``OWN`` before each exchange of a step, and ``EXCHANGE`` after it."""

    def close(self) -> None:
        """Leave the other ranks."""


def on_any_rank(parallel: Parallel, flag: bool) -> bool:
    """Return whether any rank passes True. All ranks call it together."""
    return bool(parallel.total(torch.tensor([flag], dtype=torch.float64)))


class Precision:
    """How numbers are computed and stepped. These are the answers in float32."""

    @property
    def loss_scale(self) -> float:
        """The factor on the loss, and so on the gradients before ``step``. It may synchronize."""
        return 1.0

    def autocast(self) -> AbstractContextManager[Any]:
        return NOTHING

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        clip: Callable[[], object] | None,
        skip_bad: bool = False,
        last: bool = True,
    ) -> bool:
        """Unscale the gradients, ``clip`` them, and step. Return whether the weights moved.

        They do not if a scaled gradient overflowed or, with ``skip_bad``, if one is not finite.
        The scale stays for all phases of a step: it changes behind the ``last`` one.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scale of ``state``, which is empty if it had none."""
