"""Which step ``step=`` names: a number, the worst by a metric, or the first that is not finite."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from framework.commands.replay.run_history import RunHistory
from framework.errors import ConfigError, did_you_mean, listed

NAN = "nan"
KINDS = "give a number, max:METRIC, min:METRIC or nan"
_EXTREME = re.compile(r"(max|min):(.+)")


class StepSearch(NamedTuple):
    """A search for a step within the steps of one report.

    Attributes:
        first: The first step to replay.
        last: The last one.
        metric: The metric that decides; "" for the first step that is not finite.
        highest: Whether the highest value counts.
    """

    first: int
    last: int
    metric: str
    highest: bool = True

    def rank(self, means: Mapping[str, float]) -> float:
        """Return how bad a step or report is. A mean that is no number is the worst."""
        value = means.get(self.metric, math.nan)
        if math.isnan(value):
            return math.inf
        return value if self.highest else -value


def choose_step(text: str, history: RunHistory) -> int | StepSearch:
    """Return the step, or the steps of the report in which to look for it.

    Raises:
        ConfigError: C340 for another text, C341 for a step that the run has not taken, C342 for an
            unknown metric, C343 if no report can be searched.
    """
    where = f"step = {text}"
    if text.isdecimal() and int(text):
        _check_taken(int(text), history)
        return int(text)
    if text == NAN:
        return _first_bad(history, where)
    match = _EXTREME.fullmatch(text)
    if match is None:
        raise ConfigError(340, where, "names no step", KINDS)
    return _extreme(history, where, match[2], match[1] == "max")


def _check_taken(step: int, history: RunHistory) -> None:
    if step > history.last_step:
        what = f"the run has taken {history.last_step} steps"
        raise ConfigError(341, f"step = {step}", what, "give one of them")


def _extreme(history: RunHistory, where: str, metric: str, highest: bool) -> StepSearch:
    if not history.reports:
        what = "the run has no reports in metrics.jsonl"
        raise ConfigError(343, where, what, "give the number of a step")
    names = list(dict.fromkeys(name for report in history.reports for name in report.means))
    if metric not in names:
        what = f"no report of training has this metric{did_you_mean(metric, names)}"
        raise ConfigError(342, where, what, f"choose {listed(names)}")
    searches = [StepSearch(own.first, own.last, metric, highest) for own in history.reports]
    ranks = [
        search.rank(report.means) for search, report in zip(searches, history.reports, strict=True)
    ]
    return searches[ranks.index(max(ranks))]


def _first_bad(history: RunHistory, where: str) -> StepSearch:
    """Return the first report that skipped a step, or the steps after the last report."""
    skipped = 0
    for report in history.reports:
        if report.skipped > skipped:
            return StepSearch(report.first, report.last, "")
        skipped = report.skipped
    reported = history.reports[-1].last if history.reports else 0
    if not history.diverged:
        what = "every reported step of the run was finite"
        raise ConfigError(343, where, what, "give the number of a step, or max:loss")
    # a run that skipped too many steps ends before it counts the last one
    return StepSearch(reported + 1, max(history.last_step, reported) + 1, "")
