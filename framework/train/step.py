"""One optimizer step: its passes, its learning rate, the average of the weights, and bad
gradients.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, Outcome, Schedule
from framework.train.ema import Average
from framework.train.metrics import Progress, TrainPlan
from framework.train.nonfinite import infinite_buffers, too_many


@final
class Passes:
    """The forward and backward passes of a step, run kernel by kernel.

    Args:
        model: Wrapped by ``parallel``.
        objective: Computes the loss.
        parallel: Exchanges the gradients.
        precision: Scales the loss.
        mark: The clock's ``mark``.

    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        parallel: Parallel,
        precision: Precision,
        mark: Callable[[str], None],
    ) -> None:
        self.model = model
        self.objective = objective
        self.parallel = parallel
        self.precision = precision
        self.mark = mark

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        """Add ``weight`` times the gradient of the loss. ``last`` marks the last pass of a step."""
        with self.parallel.accumulate(self.model, last):
            with self.precision.autocast():
                outcome = self.objective(self.model, batch)
            self.mark("forward")
            self.precision.backward(outcome.loss if weight == 1.0 else outcome.loss * weight)
        self.mark("backward")  # includes the exchange of gradients
        return outcome


@final
class Stepper:
    """The update of the weights at the end of a step.

    Args:
        plan: Clips gradients, and says what happens to bad ones.
        model: The user's own model, not what wraps it.
        optimizer: Over the parameters of ``model``.
        schedule: The factor on the learning rate.
        precision: Steps the optimizer.
        average: The moving average of the weights, or None.

    Attributes:
        updated: Whether the pass itself has updated the weights, as a captured step does.
        infinite: The buffers that are infinite by design, as ``infinite_buffers`` returns them.

    """

    def __init__(
        self,
        plan: TrainPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        precision: Precision,
        average: Average | None,
    ) -> None:
        self.plan = plan
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.precision = precision
        self.average = average
        self.updated = False
        self.infinite = infinite_buffers(model)
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._factor = 1.0
        self._buffers = _Buffers(model) if plan.skip_bad else None

    @property
    def rate(self) -> float:
        """The newest learning rate of the first parameter group."""
        return self._rates[0] * self._factor

    def share_rates(self) -> None:
        """Keep the learning rates on the device as float32, so that a captured step reads the
        current ones.
        """
        for group in self.optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
            if "capturable" in group:
                group["capturable"] = True
        # torch would warn of steps that are not captured, but the first ones and short batches are
        # not
        self.optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model, inside the context, the weights that are evaluated and kept."""
        return nullcontext() if self.average is None else self.average.applied()

    def weights(self) -> dict[str, Any]:
        """Return the weights that are kept: the average's if there is one."""
        return (self.average or self.model).state_dict()

    def set_rates(self, progress: Progress, last_step: int) -> None:
        """Set the learning rates of the next step. Skipped steps take no place in the schedule."""
        self._factor = self.schedule(progress.scheduled, last_step)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * self._factor)
            else:
                group["lr"] = rate * self._factor

    def update(self) -> bool:
        """Update the weights from the gradients. Return False if the step was skipped."""
        changed = self.precision.step(self.optimizer, self.plan.clip_norm, self.plan.skip_bad)
        if changed and self.average is not None:
            self.average.update()
        return changed

    def step(self, progress: Progress, last_step: int) -> None:
        """Finish one step, and count it as taken or missed.

        Raises:
            NumericError: N102 if more steps in a row than ``plan.max_missed`` were missed.

        """
        if not self.updated:
            self.set_rates(progress, last_step)
        if self.updated or self.update():
            progress.scheduled += 1
            progress.missed = 0
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
        """Return the state of all that steps: tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with this run's own rates and options: if they differ, the user
        typed them.
        """
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            saved = state["model"] if state["average"] is None else state["average"]
            self.average.load_state_dict(saved)
        # the options come first, because they decide on which device the optimizer keeps its state
        groups: list[dict[str, Any]] = []
        saved_groups = state["optimizer"]["param_groups"]
        for group, own in zip(saved_groups, self.optimizer.param_groups, strict=True):
            options = {name: value for name, value in own.items() if name != "params"}
            groups.append({**group, **options})
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.precision.load_state_dict(state["precision"])
        if self._buffers is not None:
            self._buffers.keep()


@final
class _Buffers:
    """A copy of a model's buffers, for steps that are skipped after batch norm has seen their
    records.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # not its buffers: a model may replace them
        self._kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the current buffers as valid."""
        for name, buffer in self._model.named_buffers():
            kept = self._kept.get(name)
            if kept is not None and kept.shape == buffer.shape:
                kept.copy_(buffer)
            else:
                self._kept[name] = buffer.clone()

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the valid buffers, except those whose shape has changed since."""
        for name, buffer in self._model.named_buffers():
            kept = self._kept.get(name)
            if kept is not None and kept.shape == buffer.shape:
                buffer.copy_(kept)
