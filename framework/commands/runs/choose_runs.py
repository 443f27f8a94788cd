"""Choose runs by a comparison, and sort them by a key."""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from framework.commands.report.compare_runs import UNKNOWN, chosen
from framework.commands.runs.run_listing import ListedRun
from framework.errors import ConfigError, did_you_mean, listed

FACTS = ("name", "status", "code", "started", "steps", "time_s", "disk_bytes")


def chosen_runs(runs: Sequence[ListedRun], where: str | None, sort: str | None) -> list[ListedRun]:
    """Return the runs that fulfil ``where``, sorted by the key ``sort``.

    Raises:
        ConfigError: C204 for a comparison that cannot be computed, C374 for an unknown key.
    """
    result = list(runs)
    if where is not None and result:
        # This loads torch, which a list without it need not wait for.
        from framework.order.select import ExpressionWords, truths  # noqa: PLC0415

        fix = """compare values of runs, as in where='status == "failed" or accuracy < 0.5'"""
        words = ExpressionWords("where", "run", fix)
        mask = truths(where, RunValues(result), len(result), words)
        result = [run for run, is_chosen in zip(result, mask, strict=True) if is_chosen]
    if sort is not None and result:
        result = _sorted(result, sort)
    return result


def value_of(run: ListedRun, name: str) -> Any:
    """Return a fact, a best metric or an option of a run; None if it is unknown."""
    facts = {
        "name": run.recorded.name,
        "status": run.state.status,
        "code": run.state.code,
        "started": run.started,
        "steps": run.steps,
        "time_s": run.time_s,
        "disk_bytes": run.disk_bytes,
    }
    for known in (facts, run.best or run.val, run.recorded.config):
        if name in known:
            return known[name]
    choice = chosen(run.recorded, name)
    return None if choice == UNKNOWN else choice


@final
class RunValues:
    """What a comparison may ask about runs."""

    classes = ()

    def __init__(self, runs: Sequence[ListedRun]) -> None:
        self._runs = runs

    @property
    def names(self) -> list[str]:
        """Facts, metrics, and the options that were typed; every other option has a name, too."""
        metrics = [name for run in self._runs for name in run.best or run.val]
        choices = [name for run in self._runs for name in run.recorded.choices]
        return list(dict.fromkeys([*FACTS, *metrics, *choices]))

    def answer(self, name: str) -> np.ndarray | None:
        """Return a number of each run, or a text if any run has one; NaN or "" if unknown."""
        values = [value_of(run, name) for run in self._runs]
        if all(value is None for value in values) and name not in self.names:
            return None
        if any(isinstance(value, str | list | dict) for value in values):
            return np.array(["" if value is None else str(value) for value in values])
        return np.array([_float(value) for value in values])


def _sorted(runs: Sequence[ListedRun], sort: str) -> list[ListedRun]:
    """Return the runs by one value: the least first, or with ``-`` before the key the greatest."""
    name = sort.removeprefix("-")
    known = RunValues(runs)
    values = known.answer(name)
    if values is None:
        what = f"is no value of these runs{did_you_mean(name, known.names)}"
        raise ConfigError(374, f"sort = {sort}", what, f"choose from {listed(known.names)}")
    pairs = list(zip(runs, values.tolist(), strict=True))
    unknown = [run for run, value in pairs if _is_unknown(value)]
    pairs = [(run, value) for run, value in pairs if not _is_unknown(value)]
    pairs.sort(key=lambda pair: pair[1], reverse=sort.startswith("-"))
    return [*(run for run, _ in pairs), *unknown]


def _is_unknown(value: float | str) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))


def _float(value: Any) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.inf
