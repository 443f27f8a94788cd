"""One optimizer step: its passes, learning rate, average of the weights, and bad gradients."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from framework.contracts.batch import Batch, num_records
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import (
    Objective,
    Outcome,
    Schedule,
)
from framework.schedule.plateau import Plateau
from framework.schedule.torch_schedule import TorchSchedule
from framework.train.count_weights import CountWeights
from framework.train.ema import Average
from framework.train.metrics import Progress, TrainPlan
from framework.train.nonfinite import infinite_buffers, too_many
from framework.train.objective_state import ObjectiveState
from framework.train.parameter_groups import UNTIL
from framework.train.plain_state import check_like, optimizer_form


@final
@dataclass
class Passes:
    """The forward and backward passes of a step, run kernel by kernel."""

    model: nn.Module  # wrapped by ``parallel``
    objective: Objective
    parallel: Parallel
    precision: Precision
    counts: CountWeights
    mark: Callable[[str], None]  # the clock's

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        """Add ``weight`` times the gradient of the loss. ``last`` marks the last pass of a step."""
        with self.parallel.accumulate(self.model, last):
            with self.precision.autocast():
                outcome = self.objective(self.model, batch)
            self.mark("forward")
            loss = self.counts.weighed(outcome, weight, last, num_records(batch))
            self.precision.backward(loss)
            self.counts.end_pass()
        self.mark("backward")  # includes the exchange of gradients
        return outcome


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``optimizer.zero_grad(set_to_none=True)`` does, faster.

    For six parameters torch's own method takes 30 us and this one 7, without a mark for torch's
    profiler and a call that keeps torch's compiler out.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)  # somebody's own, which may do more
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


@final
@dataclass
class Stepper:
    """The update of the weights at the end of a step."""

    plan: TrainPlan
    model: nn.Module  # the user's own, not what wraps it
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    average: Average | None
    counts: CountWeights
    setter: TorchSchedule | None = None  # sets the rates instead of ``schedule``
    owned: ObjectiveState | None = None  # weights and state of the objective

    def __post_init__(self) -> None:
        self.rate_changes = 0  # how often validations have changed the schedule
        self._follower: Plateau | None = None
        if isinstance(self.schedule, Plateau):
            self._follower = self.schedule
        self.updated = False  # whether the pass has updated the weights, as a captured step does
        self.infinite = infinite_buffers(self.model)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._position = (0, 1)  # the newest step, and the last one
        self._until = [group.get(UNTIL, 1.0) for group in self.optimizer.param_groups]
        self._least_until = min(self._until)
        self._buffers: dict[str, torch.Tensor] = {}
        self._keep_buffers()

    @property
    def rate(self) -> float:
        """The newest learning rate of the first parameter group."""
        return self.rates_of(*self._position)[0]

    def rates_of(self, step: int, last_step: int) -> list[float]:
        """Return the learning rates of the groups at a step. Those of a ``setter`` are present."""
        if self.setter is not None:
            rates = self.setter.rates
        else:
            factor = self.schedule(step, last_step)
            rates = [rate * factor for rate in self._rates]
        if step >= self._least_until * last_step:
            for number, until in enumerate(self._until):
                if step >= until * last_step:
                    rates[number] = 0.0
        return rates

    def share_rates(self) -> list[torch.Tensor]:
        """Move the rates to the device, where a captured step reads them: float32. Return them."""
        shared: list[torch.Tensor] = []
        for group in self.optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
            shared.append(group["lr"])
            if "capturable" in group:
                group["capturable"] = True
        # torch would warn of steps that are not captured: the first ones and short batches
        self.optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        return shared

    def unshare_rates(self) -> None:
        """Undo ``share_rates``, for parameters that no fused optimizer takes."""
        rates = self.rates_of(*self._position)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            group["fused"] = None  # torch's own choice, which is not the loop over single weights
            if "capturable" in group:
                group["capturable"] = False

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model, inside the context, the weights that are evaluated and kept."""
        return nullcontext() if self.average is None else self.average.applied()

    def weights(self) -> dict[str, Any]:
        """Return the weights that are kept: the average's if there is one."""
        return (self.average or self.model).state_dict()

    def set_rates(self, progress: Progress, last_step: int) -> None:
        """Set the learning rates of the next step. Skipped steps take no place in the schedule."""
        if self.setter is not None:
            place = progress.scheduled
            if self.setter.per == "epoch":
                place = progress.epoch
            self.setter.move_to(place)
            self.setter.set_options(self.optimizer.param_groups)
        rates = self.rates_of(progress.scheduled, last_step)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def follow(self, means: Mapping[str, float], parallel: Parallel) -> None:
        """Let the schedule follow a validation. All ranks take rank 0's value, to stay alike."""
        if self._follower is not None:
            own = torch.tensor([self._follower.value_of(means)], dtype=torch.float64)
            value = float(parallel.gather(own)[0])
            self.rate_changes += self._follower.follow(value)

    def forget_best(self) -> None:
        """Let the schedule compare no more with the validations so far."""
        if self._follower is not None:
            self._follower.forget_best()

    def update(self) -> bool:
        """Update the weights from the gradients. Return False if the step was skipped.

        This is what a graph captures, so it updates only an average that all steps update alike.
        """
        if self.owned is not None:
            self.owned.average_gradients()
        self.counts.rescale()
        changed = self.precision.step(self.optimizer, self.plan.clip_norm, self.plan.skip_bad)
        if changed and self.average is not None and self.average.is_constant:
            self.average.update()
        return changed

    def step(self, progress: Progress, last_step: int) -> None:
        """Finish one step, and count it as taken or missed.

        NumericError N102 if more steps in a row than ``plan.max_missed`` were missed.
        """
        self._position = (progress.scheduled, last_step)
        if not self.updated:
            self.set_rates(progress, last_step)
        if self.updated or self.update():
            progress.scheduled += 1
            progress.missed = 0
            if self.average is not None and not self.average.is_constant:
                self.average.update_after(progress.scheduled, last_step)
            self._keep_buffers()
        else:
            progress.missed += 1
            self._restore_buffers()
            if progress.missed > self.plan.max_missed:
                raise too_many(progress)
        if self.owned is not None:
            self.owned.share_buffers()
        if not self.updated:  # a captured step leaves no gradients
            drop_gradients(self.optimizer)
        self.updated = False

    def _keep_buffers(self) -> None:
        """Remember the buffers, for steps that are skipped after batch norm saw their records."""
        if not self.plan.skip_bad:
            return
        for name, buffer in self._named_buffers():
            kept = self._buffers.get(name)
            if kept is not None and kept.shape == buffer.shape:
                kept.copy_(buffer.detach())
            else:
                self._buffers[name] = buffer.detach().clone()

    @torch.no_grad()
    def _restore_buffers(self) -> None:
        """Restore the remembered buffers, except those whose shape has changed since."""
        for name, buffer in self._named_buffers():
            kept = self._buffers.get(name)
            if kept is not None and kept.shape == buffer.shape:
                buffer.copy_(kept)

    def _named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.named_buffers()  # anew, since a model may replace its buffers
        if self.owned is not None:
            yield from self.owned.named_buffers()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all that steps: tensors and plain values."""
        keeper = self.setter or self._follower
        return {
            "model": self.model.state_dict(),
            "average": self.average and self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
            "schedule": keeper and keeper.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. If this run's rates and options differ, the user typed them.

        TypeError, ValueError, KeyError or RuntimeError if its form is not that of this run.
        """
        keeper = self.setter or self._follower
        own = self.state_dict()
        check_like(state["model"], own["model"], "model")
        for name in ("average", "precision", "schedule"):  # a run with other options has none
            if state[name] and own[name]:
                check_like(state[name], own[name], name)
        saved_groups = state["optimizer"]["param_groups"]
        numbers = [group["params"] for group in own["optimizer"]["param_groups"]]
        if [group["params"] for group in saved_groups] != numbers:
            raise ValueError("optimizer.param_groups has other parameters")
        form = optimizer_form(self.optimizer)
        if form is not None:
            for number, values in state["optimizer"]["state"].items():
                check_like(values, form[number], f"optimizer.state.{number}")
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"] or state["model"])
        # the options come first, because they decide on which device the optimizer keeps its state
        groups = [
            {**saved, **group, "params": saved["params"]}
            for saved, group in zip(saved_groups, self.optimizer.param_groups, strict=True)
        ]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.precision.load_state_dict(state["precision"])
        if keeper is not None and state["schedule"] is not None:
            keeper.load_state_dict(state["schedule"])
        self._keep_buffers()
