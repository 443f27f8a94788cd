"""What an optimizer step is, beyond the optimizer: its rate, the average of the weights, and what becomes of gradients that are no numbers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn

from framework.contracts.parallel import Precision
from framework.contracts.training import Schedule
from framework.train.ema import Average
from framework.train.metrics import Progress, TrainPlan
from framework.train.nonfinite import infinite_buffers, too_many


@final
class Stepper:
    """Steps ``optimizer``, whose parameters are ``model``'s (the user's own, not what wraps it)."""

    def __init__(
        self,
        plan: TrainPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        precision: Precision,
        average: Average | None,
    ) -> None:
        self.plan, self.model, self.optimizer, self.schedule = plan, model, optimizer, schedule
        self.precision, self.average = precision, average
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._factor = 1.0
        self.updated = False  # by who took the pass: a captured step includes it
        self._buffers = _Buffers(model) if plan.skip_bad else None
        self.infinite = infinite_buffers(model)  # from the start: no sign of anything

    @property
    def rate(self) -> float:
        """The newest learning rate, of the first group."""
        return self._rates[0] * self._factor

    def share_rates(self) -> None:
        """From now on kernels read the rates from the device, as float32, where ``set_rates`` writes them: a captured step may not know them."""
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(
                group["lr"], dtype=torch.float32, device=group["params"][0].device
            )
            if "capturable" in group:
                group["capturable"] = True
        # steps that are not captured (the first, short batches) are meant: torch would warn of them
        self.optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are evaluated and kept: the average's, where there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    def weights(self) -> dict[str, Any]:
        """What is kept, to use."""
        return (self.average or self.model).state_dict()

    def set_rates(self, progress: Progress, last_step: int) -> None:
        """Those of the next step. A step that is left out takes no place in the schedule."""
        self._factor = self.schedule(progress.scheduled, last_step)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * self._factor)
            else:
                group["lr"] = rate * self._factor

    def update(self) -> bool:
        """Whether the weights changed."""
        changed = self.precision.step(self.optimizer, self.plan.clip_norm, self.plan.skip_bad)
        if changed and self.average is not None:
            self.average.update()
        return changed

    def step(self, progress: Progress, last_step: int) -> None:
        """One step, counted as one that changed the weights or missed them. NumericError N102 where too many in a row did not."""
        if not self.updated:
            self.set_rates(progress, last_step)
        if self.updated or self.update():
            progress.scheduled, progress.missed = progress.scheduled + 1, 0
            if self._buffers is not None:
                self._buffers.keep()
        else:
            progress.missed += 1
            if self._buffers is not None:
                self._buffers.put_back()
            if progress.missed > self.plan.max_missed:
                raise too_many(progress)
        self.updated = False
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
            self.average.load_state_dict(
                state["model"] if state["average"] is None else state["average"]
            )
        # before the optimizer takes it: by its options it decides where its state lies
        options = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        groups = [
            {**group, **own}
            for group, own in zip(state["optimizer"]["param_groups"], options, strict=True)
        ]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.precision.load_state_dict(state["precision"])
        if self._buffers is not None:
            self._buffers.keep()


@final
class _Buffers:
    """A model's buffers as they were, for when a step is left out: batch norm's statistics have seen its records by then."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # which may put another tensor in a buffer's place
        self._kept = {name: one.clone() for name, one in model.named_buffers()}

    @torch.no_grad()
    def keep(self) -> None:
        """They are good now."""
        for name, own in self._model.named_buffers():
            kept = self._kept.get(name)
            if kept is not None and kept.shape == own.shape:
                kept.copy_(own)
            else:
                self._kept[name] = own.clone()

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were when they were good; one that is of another shape at every step is what the last made of it."""
        for name, own in self._model.named_buffers():
            kept = self._kept.get(name)
            if kept is not None and kept.shape == own.shape:
                own.copy_(kept)
