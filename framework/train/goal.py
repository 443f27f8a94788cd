"""Which of two validations is better, by one metric."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from framework.errors import ConfigError, listed


def value_of(means: Mapping[str, float], metric: str) -> float | None:
    """Return a metric of a validation; None if there is no such metric.

    With several validation sets, a name without a set's is of the first set.
    """
    if metric in means:
        return means[metric]
    return next((means[name] for name in means if name.endswith(f".{metric}")), None)


def unknown_metric(key: str, metric: str, means: Mapping[str, float]) -> ConfigError:
    """Return the error for a metric that no validation has. ``key`` names the option."""
    names = listed([name for name in means if name != "step"])
    return ConfigError(331, f"{key} = {metric}", "is no metric of the validation", f"use {names}")


@final
@dataclass(frozen=True)
class Goal:
    """A metric to raise or to lower.

    Attributes:
        metric: Its name.
        higher: Whether higher is better.
        key: The option that names it, for messages.
    """

    metric: str
    higher: bool
    key: str = "best.metric"

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Return whether the metrics ``new`` are better than ``old``, which may lack this one.

        A number is better than NaN. ConfigError C331 if ``new`` lacks the metric.
        """
        value = value_of(new, self.metric)
        if value is None:
            raise unknown_metric(self.key, self.metric, new)
        before = value_of(old, self.metric)
        if before is None or math.isnan(before):
            return not math.isnan(value)
        return value > before if self.higher else value < before
