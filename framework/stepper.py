"""What an optimizer step is, beyond the optimizer: its rate, the average of the weights, and what becomes of gradients that are no numbers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn

from framework.average import Average
from framework.contracts import Precision, Schedule
from framework.finite import too_many
from framework.tally import Plan, Progress


@final
class Stepper:
    """Steps ``optimizer``, whose parameters are ``model``'s (the user's own, not what wraps it)."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        precision: Precision,
        average: Average | None,
    ) -> None:
        self.plan, self.model, self.optimizer, self.schedule = plan, model, optimizer, schedule
        self.precision, self.average = precision, average
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._buffers = _Buffers(model) if plan.skip_bad else None

    @property
    def rate(self) -> float:
        """The newest learning rate, of the first group."""
        return self.optimizer.param_groups[0]["lr"]

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are evaluated and kept: the average's, where there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    def weights(self) -> dict[str, Any]:
        """What is kept, to use."""
        return (self.average or self.model).state_dict()

    def step(self, progress: Progress, last_step: int) -> None:
        """One step, counted as one that changed the weights or missed them. NumericError N102 where too many in a row did not."""
        factor = self.schedule(progress.scheduled, last_step)  # a step that is left out takes no place in the schedule
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        if self.precision.step(self.optimizer, self.plan.clip_norm, self.plan.skip_bad):
            progress.scheduled, progress.missed = progress.scheduled + 1, 0
            if self.average is not None:
                self.average.update()
            if self._buffers is not None:
                self._buffers.keep()
        else:
            progress.missed += 1
            if self._buffers is not None:
                self._buffers.put_back()
            if progress.missed > self.plan.max_missed:
                raise too_many(progress)
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, with this run's own rates, decays and the like: where they differ, the user has said so."""
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["model"] if state["average"] is None else state["average"])
        options = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        self.precision.load_state_dict(state["precision"])
        if self._buffers is not None:
            self._buffers.keep()


@final
class _Buffers:
    """A model's buffers as they were, for when a step is left out: batch norm's statistics have seen its records by then."""

    def __init__(self, model: nn.Module) -> None:
        self._own = list(model.buffers())
        self._kept = [one.clone() for one in self._own]

    @torch.no_grad()
    def keep(self) -> None:
        """They are good now."""
        for kept, own in zip(self._kept, self._own, strict=True):
            kept.copy_(own)

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were when they were good."""
        for kept, own in zip(self._kept, self._own, strict=True):
            own.copy_(kept)
