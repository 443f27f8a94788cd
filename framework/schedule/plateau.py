"""A learning rate that falls when a metric of validation stops improving."""

import math
from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from framework.errors import ConfigError


@final
class Plateau:
    """The optimizer's own rate, times ``factor`` for each time that the metric stopped improving.

    torch's ReduceLROnPlateau decides. It sees one optimizer with the rate 1.
    ``conf/schedule/plateau.yaml`` describes the arguments.
    """

    def __init__(
        self,
        metric: str,
        mode: Literal["min", "max"],
        factor: float,
        patience: int,
        threshold: float,
        cooldown: int = 0,
        final: float = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        self.metric = metric
        self.warmup_steps = warmup_steps
        self._threshold = threshold
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._torch = ReduceLROnPlateau(
            self._optimizer, mode, factor, patience, cooldown=cooldown, min_lr=final, eps=0.0
        )

    @property
    def factor(self) -> float:
        """The present factor on the optimizer's own rate, after the warm-up."""
        return self._optimizer.param_groups[0]["lr"]

    def __call__(self, step: int, total_steps: int) -> float:
        if step < self.warmup_steps:
            return self.factor * (step + 1) / self.warmup_steps
        return self.factor

    def value_of(self, means: Mapping[str, float]) -> float:
        """Return the metric to follow. ConfigError C314 if the validation does not have it.

        Of several validation sets, whose names stand before a dot, the first one counts.
        """
        if self.metric in means:
            return means[self.metric]
        names = [name for name in means if name.endswith(f".{self.metric}")]
        if not names:
            what = f"validation has {', '.join(means)}"
            where = f"schedule.metric = {self.metric}"
            raise ConfigError(314, where, what, "name one of them")
        return means[names[0]]

    def follow(self, value: float) -> bool:
        """Take in the metric of a validation. Return whether the rate has changed."""
        before = self.factor
        # torch multiplies the best value by 1 - threshold, or by 1 + threshold if greater is
        # better. For a negative value, that would accept a worse one.
        best = self._torch.best
        signed = self._threshold if best >= 0 else -self._threshold
        self._torch.threshold = signed if math.isfinite(best) else 0.0
        self._torch.step(value)
        return self.factor != before

    def state_dict(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "best": float(self._torch.best),
            "num_bad": self._torch.num_bad_epochs,
            "cooldown": self._torch.cooldown_counter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.param_groups[0]["lr"] = state["factor"]
        self._torch.best = state["best"]
        self._torch.num_bad_epochs = state["num_bad"]
        self._torch.cooldown_counter = state["cooldown"]

    def forget_best(self) -> None:
        """Compare no more with the validations so far, which were on other data. Keep the rate."""
        self._torch._reset()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
