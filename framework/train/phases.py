"""A step in phases: each takes all passes of the step, and updates a part of the model."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import nn

from framework.contracts.batch import Batch, num_records
from framework.contracts.training import Objective, Outcome
from framework.errors import ConfigError
from framework.train import step
from framework.train.exchange import average_gradients, take_from_first
from framework.train.metrics import check_outcome
from framework.train.parts import Parts

Held = tuple[Batch, float]  # the batch of a pass and its weight


@final
class PhasedPasses:
    """The passes of a step, phase by phase. ``set_rates`` sets the learning rates of the step."""

    def __init__(self, parts: Parts, stepper: step.Stepper, set_rates: Callable[[], None]) -> None:
        self._parts = parts
        self._stepper = stepper
        self._set_rates = set_rates
        self._last = ""  # the last phase whose part is not frozen
        self._passes: dict[str, step.Passes] = {}
        self._clips: dict[str, Callable[[], object] | None] = {}
        for phase, optimizer in parts.phases.items():
            counts = step.CountWeights(parts.parallel, optimizer, parts.sums_records)
            call: Any = _of_phase(parts.objective, phase)
            own = (parts.parallel, parts.precision, counts, parts.clock.mark)
            self._passes[phase] = step.Passes(parts.model, call, *own)
            self._clips[phase] = step.clipping(parts.model, optimizer, parts.plan.clip_norm)

    def watch(self) -> None:
        """Drop the gradients of passes in which nothing counts, of what is not frozen now."""
        for phase, passes in self._passes.items():
            if any(own.requires_grad for own in step.parameters_of(self._parts.phases[phase])):
                self._last = phase
            # Objectives call parts of the model, so that only the parameters can be watched.
            passes.counts.watch(nn.Module())

    def __call__(self, held: Sequence[Held]) -> list[Outcome]:
        """Take a whole step, and return the outcome of each pass over all phases."""
        parts, stepper = self._parts, self._stepper
        self._set_rates()
        outcomes: list[list[Outcome]] = [[] for _ in held]
        changed = True
        for phase, passes in self._passes.items():
            for number, (batch, weight) in enumerate(held, 1):
                outcome = passes(batch, weight, number == len(held))
                outcome.loss = outcome.loss.detach()  # its graph would stay until the last phase
                outcomes[number - 1].append(outcome)
            optimizer = parts.phases[phase]
            trained = [own for own in step.parameters_of(optimizer) if own.requires_grad]
            average_gradients(trained, parts.parallel)
            passes.counts.rescale()
            if trained:  # a scaler refuses a part without gradients
                last = phase == self._last
                changed &= parts.precision.step(optimizer, self._clips[phase], last=last)
            step.drop_gradients(stepper.optimizer)
            parts.clock.mark("optimizer")
        take_from_first(list(parts.model.buffers()), parts.parallel)
        if changed:
            stepper.update_average()
        stepper.updated = changed
        return [joined(list(self._passes), own) for own in outcomes]


def _of_phase(objective: Objective, phase: str) -> Callable[[nn.Module, Batch], Outcome]:
    def call(model: nn.Module, batch: Batch) -> Outcome:
        outcome = objective(model, batch, phase)  # pyright: ignore[reportCallIssue]  # HasPhases
        check_outcome(outcome, num_records(batch))
        return outcome

    return call


def joined(phases: Sequence[str], outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome of a pass: the sum of the losses, each in ``losses``, and all sums.

    ConfigError C220 if two phases use a name, or do not count alike.
    """
    losses = {phase: own.loss for phase, own in zip(phases, outcomes, strict=True)}
    total = torch.stack(list(losses.values())).double().sum()
    result = Outcome(total, {}, outcomes[0].count, {}, losses)
    for phase, own in zip(phases, outcomes, strict=True):
        if (own.count is None) != (result.count is None):
            what = f"is {own.count} in the phase {phase}, and {result.count} in the one before"
            raise ConfigError(220, "Outcome.count", what, "return the same count in all phases")
        for given, all_of_them in ((own.sums, result.sums), (own.totals, result.totals)):
            for name, value in given.items():
                if name in all_of_them or name in losses:
                    what = f"another value than that of the phase {phase} has this name"
                    fix = "name it after its phase"
                    raise ConfigError(220, f"Outcome.sums['{name}']", what, fix)
                all_of_them[name] = value
    return result
