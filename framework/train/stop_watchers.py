"""Watchers that end a run: no better metric for a while, or enough time."""

import math
from typing import Any, final

from framework.contracts.training import Moment, Watcher
from framework.train.goal import Goal, value_of


@final
class EarlyStop(Watcher):
    """Ends a run after ``patience`` validations in a row without a better one.

    Args:
        patience: The number of validations, at least 1.
        goal: The metric to look at; None: what decides which weights are best.
    """

    def __init__(self, patience: int, goal: Goal | None = None) -> None:
        self.patience = patience
        self.goal = goal
        self.best = math.nan
        self.best_step = 0
        self.num_worse = 0  # validations since the best one

    def after_validation(self, moment: Moment) -> str | None:
        if self._is_better(moment):
            self.best_step = moment.step
            self.num_worse = 0
        else:
            self.num_worse += 1
        if self.num_worse < self.patience:
            return None
        name = "validation"
        best = f"step {self.best_step}"
        if self.goal is not None:
            name = self.goal.metric
            best = f"{self.best:.4g} after {best}"
        return f"no better {name} in {self.num_worse} validations (best: {best})"

    def _is_better(self, moment: Moment) -> bool:
        if self.goal is None:
            return moment.is_best
        before = {self.goal.metric: self.best} if self.best_step else {}
        if not self.goal.better(moment.metrics, before):
            return False
        self.best = value_of(moment.metrics, self.goal.metric) or 0.0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self.goal and self.goal.metric,
            "best": self.best,
            "best_step": self.best_step,
            "num_worse": self.num_worse,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, unless the state is of another metric."""
        if state["metric"] == (self.goal and self.goal.metric):
            self.best = float(state["best"])
            self.best_step = int(state["best_step"])
            self.num_worse = int(state["num_worse"])


@final
class TimeBudget(Watcher):
    """Ends a run after ``seconds`` of training, over all parts of a resumed run.

    Validating and saving do not count. The time is compared at each report.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_report(self, moment: Moment) -> str | None:
        if moment.train_s < self.seconds:
            return None
        return f"it has trained for {moment.train_s:.0f} s (at most {self.seconds:g} s)"

    after_validation = after_report
