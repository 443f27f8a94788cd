"""The pace of a run, its watchers, and who of several ranks made whom wait.

All ranks wait for the last one when they exchange gradients. That rank is late if its own work took
longer than that of the others, who waited as long.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from framework.contracts.loader import Clock, KnowsOwnWork
from framework.contracts.parallel import Parallel
from framework.contracts.span import ALL_SPANS, IDLE, SPANS, LateRank, RankReport, RankSpan, Span
from framework.contracts.training import Moment, Watcher
from framework.errors import ConfigError, listed
from framework.system.rng import kept_generators
from framework.system.user_code import raise_if_user_error
from framework.train.checkpoint import is_plain

Array = NDArray[np.float64]

NAMES = (*ALL_SPANS, IDLE)
COLUMNS = 2 + len(SPANS)  # of a row of ``KnowsOwnWork.own_work``
LEAST_SHARE = 0.01  # of a step; coming later by less does not count
# A rank is named if the others wait for it this many times as long as for another rank on average,
# for this share of the run at least, and longer than chance explains by so many standard errors.
TIMES = 2.0
LEAST_LOST = 0.01
ERRORS = 3.0


@final
class TrainPace:
    """The time and the records of training. Validating and saving do not count."""

    def __init__(self) -> None:
        self.train_s = 0.0  # of this run, up to its last report
        self.num_records = 0.0  # that this run trained on, over all ranks
        self.before_s = 0.0  # before this run was resumed
        self._since = time.perf_counter()  # up to when it is counted
        self._paused_at: float | None = self._since

    @property
    def total_s(self) -> float:
        """Seconds of training up to now, over all parts of a resumed run."""
        now = self._paused_at or time.perf_counter()
        return self.before_s + self.train_s + now - self._since

    def start(self) -> None:
        self._since = time.perf_counter()
        self._paused_at = None

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Leave out the time since ``pause``."""
        assert self._paused_at is not None
        self._since += time.perf_counter() - self._paused_at
        self._paused_at = None

    def lap(self, num_records: float) -> float:
        """Count the time since the last call, and its records. Return the records per second."""
        now = time.perf_counter()
        wall_s = now - self._since
        self._since = now
        self.train_s += wall_s
        self.num_records += num_records
        return num_records / wall_s


def value_of(means: Mapping[str, float], metric: str) -> float | None:
    """Return a metric of a validation, or None. A name without a set's is of the first set."""
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
    """A metric to raise or to lower."""

    metric: str
    higher: bool  # whether higher is better
    key: str = "best.metric"  # the option that names it, for messages

    def better(
        self, new: Mapping[str, float], old: Mapping[str, float], min_delta: float = 0.0
    ) -> bool:
        """Return whether ``new`` is better than ``old``, which may lack it or be NaN. C331.

        It must be better by more than ``min_delta``.
        """
        value = value_of(new, self.metric)
        if value is None:
            raise unknown_metric(self.key, self.metric, new)
        before = value_of(old, self.metric)
        if before is None or math.isnan(before):
            return not math.isnan(value)
        return (value - before if self.higher else before - value) > min_delta


@final
class EarlyStop(Watcher):
    """Ends a run after ``patience`` validations in a row without a better one, at least 1.

    A ``goal`` of None is what decides which weights are best. With a goal, a validation is better
    if its metric improves on the best one by more than ``min_delta``. ValueError for one without.
    """

    def __init__(self, patience: int, goal: Goal | None = None, min_delta: float = 0.0) -> None:
        if min_delta and goal is None:
            raise ValueError(f"min_delta = {min_delta} needs a goal, the metric that it is about")
        self.patience = patience
        self.goal = goal
        self.min_delta = min_delta
        self.best = math.nan
        self.best_step = 0
        self.num_worse = 0  # validations since the best one

    def after_validation(self, moment: Moment) -> str | None:
        is_better = moment.is_best
        if self.goal is not None:
            before = {self.goal.metric: self.best}
            is_better = self.goal.better(moment.metrics, before, self.min_delta)
        self.num_worse += 1
        if is_better:
            if self.goal is not None:
                self.best = value_of(moment.metrics, self.goal.metric) or 0.0
            self.best_step = moment.step
            self.num_worse = 0
        if self.num_worse < self.patience:
            return None
        name, best = "validation", f"step {self.best_step}"
        if self.goal is not None:
            name, best = self.goal.metric, f"{self.best:.4g} after {best}"
        return f"no better {name} in {self.num_worse} validations (best: {best})"

    def state_dict(self) -> dict[str, Any]:
        own = {"best": self.best, "best_step": self.best_step, "num_worse": self.num_worse}
        return {"metric": self.goal and self.goal.metric, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, unless the state is of another metric."""
        if state["metric"] == (self.goal and self.goal.metric):
            self.best = float(state["best"])
            self.best_step = int(state["best_step"])
            self.num_worse = int(state["num_worse"])


@final
class TimeBudget(Watcher):
    """Ends a run at a report or validation after ``seconds`` of training, over all its parts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_report(self, moment: Moment) -> str | None:
        if moment.train_s < self.seconds:
            return None
        return f"it has trained for {moment.train_s:.0f} s (at most {self.seconds:g} s)"

    after_validation = after_report


@final
class Idle(Watcher):
    """Takes the place of a watcher on the ranks that do not call it."""


@final
class Watching:
    """Calls watchers by name. All ranks have the same names, and rank 0 calls them."""

    def __init__(
        self,
        watchers: Mapping[str, Watcher],
        parallel: Parallel,
        run_dir: Path | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self._is_on = bool(watchers)
        self.asks = False  # whether a watcher of this rank wants to stop
        self.run_dir = run_dir
        self._reason = ""
        self._parallel = parallel
        self._packages = packages
        self._watchers: Mapping[str, Watcher] = watchers if parallel.rank == 0 else {}
        self.state_dict()  # which must not fail at the first save: ConfigError C334

    def call(self, method: Callable[[Watcher], Callable[[Moment], Any]], moment: Moment) -> None:
        """Call a method of each watcher, such as ``lambda watcher: watcher.after_report``."""
        if not self._watchers:
            return
        # A watcher that draws random numbers must not change those that rank 0 trains with.
        with kept_generators(self._parallel.device):
            for name, watcher in self._watchers.items():
                call = method(watcher)
                reason = self._called(name, call, moment)
                if reason is not None and not isinstance(reason, str):
                    what = f"returned a {type(reason).__name__}"
                    fix = "return why to stop, a text, or None to go on"
                    raise ConfigError(333, f"{name}.{call.__name__}", what, fix)
                if reason and not self.asks:
                    self.asks = True
                    self._reason = " ".join(reason.split()) or name

    def agreed(self) -> str:
        """Return why rank 0 wants to stop, or "". All ranks call it together."""
        if not self._is_on:
            return ""
        # a space, since ranks cannot gather nothing
        words = torch.tensor(list(f" {self._reason}".encode()), dtype=torch.uint8)
        return bytes(self._parallel.gather(words)[0].tolist()).decode().strip()

    def _called(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            about = f"{name}.{call.__name__}"
            raise_if_user_error(error, self._packages, about, f"correct it, or leave {name} out")
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return what watchers remember, and a reason that is not agreed on yet. C334."""
        states: dict[str, Any] = {}
        for name, watcher in self._watchers.items():
            states[name] = self._called(name, watcher.state_dict)
            if not isinstance(states[name], dict) or not is_plain(states[name]):
                what = "returns more than tensors and plain values in a dict"
                fix = "return numbers, texts, tensors, and lists and dicts of them"
                raise ConfigError(334, f"{name}.state_dict", what, fix)
        return {"reason": self._reason, "watchers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``. A watcher that it lacks starts anew."""
        states = state["watchers"]
        if self._watchers:
            self._reason = state["reason"]
            self.asks = bool(self._reason)
        for name, watcher in self._watchers.items():
            if name in states:
                self._called(name, watcher.load_state_dict, states[name])


class LateSteps(NamedTuple):
    """How often and for how long each rank was late, and in which span. All add up."""

    num_steps: int
    total_s: float  # seconds of all steps
    squares_s2: float  # the sum of the squares of what ranks were late by
    late_s: Array  # seconds that each rank was late in each span, [ranks, len(SPANS)]
    num_late: Array  # in so many steps, [ranks, len(SPANS)]
    exchange_s: float = 0.0  # seconds that the last rank of each step spent in exchanges
    waiting_s: float = 0.0  # seconds in exchanges beyond these, as a mean over the ranks


@final
class RankWatch:
    """The measurements of all ranks since the start. Every rank has one, and rank 0 reads it."""

    def __init__(self, clock: Clock, parallel: Parallel) -> None:
        self._parallel = parallel
        self._clock: KnowsOwnWork | None = None
        if parallel.world_size > 1 and isinstance(clock, KnowsOwnWork):
            self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Start again, because the first steps are not like the others."""
        num_ranks = self._parallel.world_size
        self._totals_s: Array = np.zeros((num_ranks, len(NAMES), 2))
        own_s, exchange_s = np.zeros((num_ranks, 0, len(SPANS))), np.zeros((num_ranks, 0))
        self.steps = late_steps(own_s, exchange_s)  # of this run, on rank 0

    @property
    def whole(self) -> RankReport | None:
        """What rank 0 knows of all steps of this run; None if there is one rank."""
        return None if self._clock is None else self._report(self._totals_s, self.steps)

    def take(self, spans: Mapping[str, Span]) -> RankReport | None:
        """Return on rank 0 what all ranks measured since the last report. They call it together."""
        if self._clock is None:
            return None
        measured = [spans.get(name, Span()) for name in NAMES]
        totals = [(span.total_s, span.num_steps) for span in measured]
        own = list(chain(*totals, *self._clock.own_work()))
        gathered = self._parallel.gather(torch.tensor(own, dtype=torch.float64))
        if self._parallel.rank:
            return None
        header = 2 * len(NAMES)
        blocks = [block.numpy() for block in gathered]
        totals_s = np.stack([block[:header].reshape(-1, 2) for block in blocks])
        rows = [block[header:].reshape(-1, COLUMNS) for block in blocks]
        numbers = reduce(np.intersect1d, [row[:, 0] for row in rows])  # steps that all ranks have
        every = np.stack([row[np.isin(row[:, 0], numbers)] for row in rows])
        late = late_steps(every[:, :, 2:], every[:, :, 1])
        self._totals_s = self._totals_s + totals_s
        both: Any = zip(self.steps, late, strict=True)
        self.steps = LateSteps(*(own + more for own, more in both))
        return self._report(totals_s, late)

    def _report(self, totals_s: Array, late: LateSteps) -> RankReport:
        # Not every step has every span: on GPUs, some parallels only exchange flags now and then.
        num_steps = totals_s[:, [NAMES.index("optimizer")], 1]
        num_steps = np.where(num_steps, num_steps, totals_s[:, :, 1])
        means_s = totals_s[:, :, 0] / np.maximum(num_steps, 1.0)
        spans: dict[str, RankSpan] = {}
        for number, name in enumerate(NAMES):
            if totals_s[:, number, 1].any():
                own_s = means_s[:, number]
                least, middle, most = np.quantile(own_s, (0, 0.5, 1)).tolist()
                spans[name] = RankSpan(least, middle, most, int(own_s.argmax()))
        return RankReport(len(totals_s), spans, late_rank(late, len(totals_s)))


def late_steps(own_s: Array, exchange_s: Array) -> LateSteps:
    """Return which rank was late in which of the steps, by how much, and in which span.

    ``own_s`` are seconds of own work, float64 [ranks, steps, len(SPANS)], and ``exchange_s`` those
    in exchanges, float64 [ranks, steps].
    """
    num_ranks, num_steps = exchange_s.shape
    lost_s, num_late = np.zeros((2, num_ranks, len(SPANS)))
    if not num_steps:
        return LateSteps(0, 0.0, 0.0, lost_s, num_late)
    works_s = own_s.sum(axis=2)
    step_s = (works_s + exchange_s).mean(axis=0)
    last = works_s.argmax(axis=0)
    is_last = np.arange(num_ranks)[:, None] == last  # [ranks, steps]

    def more_than_others(values: Array) -> Array:
        """Return what the last rank has more than the median of the others, [steps, ...]."""
        mask = is_last if values.ndim == 2 else is_last[:, :, None]
        others = np.nanmedian(np.where(mask, np.nan, values), axis=0)
        return values[last, np.arange(num_steps)] - others

    # The others cannot have waited longer for it than they waited.
    late_s = np.minimum(more_than_others(works_s), -more_than_others(exchange_s))
    is_late = late_s > LEAST_SHARE * step_s
    places = last[is_late], more_than_others(own_s).argmax(axis=1)[is_late]
    np.add.at(lost_s, places, late_s[is_late])
    np.add.at(num_late, places, 1)
    squares_s2 = float((late_s[is_late] ** 2).sum())
    least_s = exchange_s.min(axis=0)
    waiting_s = float((exchange_s.mean(axis=0) - least_s).sum())
    total_s, least_s = float(step_s.sum()), float(least_s.sum())
    return LateSteps(num_steps, total_s, squares_s2, lost_s, num_late, least_s, waiting_s)


def late_rank(steps: LateSteps, num_ranks: int) -> LateRank | None:
    """Return the rank for which the others wait most; None if each could be it by chance."""
    lost_s = steps.late_s.sum(axis=1)
    rank = int(lost_s.argmax())
    of_others_s = (lost_s.sum() - lost_s[rank]) / (num_ranks - 1)
    error_s = math.sqrt(steps.squares_s2 * (1 - 1 / num_ranks) / num_ranks)
    by_chance_s = lost_s.mean() + ERRORS * error_s
    if lost_s[rank] <= max(TIMES * of_others_s, by_chance_s, LEAST_LOST * steps.total_s):
        return None
    count = steps.num_late[rank].sum()
    return LateRank(
        rank=rank,
        span=SPANS[int(steps.late_s[rank].argmax())],
        steps_share=float(count / steps.num_steps),
        late_s=float(lost_s[rank] / count),
        lost_share=float(lost_s[rank] / steps.total_s),
    )
