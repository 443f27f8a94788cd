"""A learning rate from a scheduler of torch, or of another library with its interface."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from framework.errors import ConfigError

EVERY = ("step", "epoch")
OPTIONS = ("momentum", "betas", "weight_decay")  # of a group, which a scheduler may change, too
PLAIN = (torch.Tensor, str, int, float, bool, type(None))


@final
class _StandIn(Optimizer):
    """The options of an optimizer's groups, without its parameters."""

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing. torch's schedulers warn if it is not called."""


@final
class TorchSchedule:
    """The rates that a scheduler gives each of the optimizer's groups.

    The scheduler works on a stand-in for the optimizer, so that it sees plain rates even if the
    optimizer reads them on the device. It takes its steps in order, after each ``step`` or
    ``epoch`` as ``per`` says. The optimizer has the rates of the start. Messages call the
    scheduler ``name``.
    """

    def __init__(
        self, make: Callable[[Optimizer], Any], optimizer: Optimizer, per: str, name: str
    ) -> None:
        if per not in EVERY:
            fix = f"choose {' or '.join(EVERY)}"
            raise ConfigError(315, f"schedule.per = {per}", "is not a time to step", fix)
        self.per = per
        groups = [{**group, "params": [torch.zeros(1)]} for group in optimizer.param_groups]
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._stand_in = _StandIn(groups, dict(optimizer.defaults))
        scheduler = make(self._stand_in)
        where = f"schedule = {name}"
        if isinstance(scheduler, ReduceLROnPlateau):
            what = "needs the metric of a validation"
            raise ConfigError(315, where, what, "choose schedule=plateau")
        if not isinstance(scheduler, LRScheduler):
            what = f"makes a {type(scheduler).__name__}, which is no scheduler of torch"
            raise ConfigError(315, where, what, "give a class like torch.optim.lr_scheduler.StepLR")
        self._scheduler = scheduler
        self._num_steps = 0
        if strange := _strange(scheduler.state_dict()):
            what = f"has a state with a {strange}, which cannot be saved"
            raise ConfigError(315, where, what, "leave such values out of its state_dict()")

    @property
    def rates(self) -> list[float]:
        """The present rate of each group."""
        return [float(group["lr"]) for group in self._stand_in.param_groups]

    def move_to(self, place: int) -> None:
        """Take steps until there were ``place`` of them since the start of the training."""
        while self._num_steps < place:
            self._stand_in.step()
            self._scheduler.step()
            self._num_steps += 1

    def set_options(self, groups: Sequence[dict[str, Any]]) -> None:
        """Give the optimizer's groups what the scheduler has changed beside their rates."""
        for group, own in zip(groups, self._stand_in.param_groups, strict=True):
            group.update({name: own[name] for name in OPTIONS if name in own})

    def state_dict(self) -> dict[str, Any]:
        names = ("lr", "initial_lr", *OPTIONS)  # what a scheduler may have changed
        groups = self._stand_in.param_groups
        return {
            "scheduler": self._scheduler.state_dict(),
            "groups": [{name: own[name] for name in names if name in own} for own in groups],
            "base": self._base,
            "num_steps": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. ValueError if the optimizer had other rates."""
        if state["base"] != self._base:
            raise ValueError("the schedule was saved with other learning rates")
        self._scheduler.load_state_dict(state["scheduler"])
        for group, saved in zip(self._stand_in.param_groups, state["groups"], strict=True):
            group.update(saved)
        self._num_steps = state["num_steps"]


def _strange(value: Any) -> str | None:
    """Return the type of a value inside a state that no checkpoint can hold, or None."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((kind for kind in map(_strange, value) if kind), None)
    return None if isinstance(value, PLAIN) else type(value).__name__
