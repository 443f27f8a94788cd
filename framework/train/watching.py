"""Reports and the pace of a run, and its watchers, whose wish to stop all ranks agree on."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from framework.contracts.parallel import Parallel
from framework.contracts.training import Moment, Report, Sink, Watcher
from framework.errors import ConfigError, listed
from framework.system.rng import kept_generators
from framework.system.user_code import raise_if_user_error
from framework.train.checkpoint import is_plain
from framework.train.metrics import Progress


@final
class Reporter:
    """Writes reports. Only rank 0 has sinks.

    The ``identity`` of the training loader says how much of an epoch is left. The run draws its
    random numbers on ``device``.
    """

    def __init__(self, identity: Mapping[str, int], device: torch.device) -> None:
        self._identity = identity
        self._device = device
        self.sinks: Sequence[Sink] = ()
        self._began_at = time.perf_counter()
        self._first_step = 0

    def begin(self, sinks: Sequence[Sink], step: int) -> None:
        """Write to these sinks. The time that is left is reckoned from ``step`` on."""
        self.sinks = sinks
        self._began_at = time.perf_counter()
        self._first_step = step

    def write(self, results: Report, progress: Progress, last_step: int, rate: float) -> Report:
        """Write a report with the results of a split, and return it.

        ``rate`` is the newest learning rate.
        """
        elapsed_s = time.perf_counter() - self._began_at
        step_s = elapsed_s / max(1, progress.step - self._first_step)
        identity, epoch_left = self._identity, 0  # between two epochs
        if progress.epoch_step:
            done = progress.epoch_step * identity["batch_size"]
            if "steps" in identity:  # batches of several sizes, which come in any order
                done = identity["records"] * progress.epoch_step // identity["steps"]
            epoch_left = max(0, identity["records"] - done)
        report = replace(
            results,
            step=progress.step,
            epoch=progress.epoch_number,
            learning_rate=rate,
            epoch_left=epoch_left,
            left_s=step_s * (last_step - progress.step),
            skipped=progress.step - progress.scheduled,
        )
        if self.sinks:
            # A sink may draw random numbers, to choose an image for example. That must not change
            # the numbers that rank 0 trains with.
            with kept_generators(self._device):
                for sink in self.sinks:
                    sink.write(report)
        return report

    def flush(self) -> None:
        for sink in self.sinks:
            sink.flush()


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

    def go_on(self) -> None:
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
    """A metric to raise or to lower."""

    metric: str
    higher: bool  # whether higher is better
    key: str = "best.metric"  # the option that names it, for messages

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


@final
class EarlyStop(Watcher):
    """Ends a run after ``patience`` validations in a row without a better one, at least 1.

    ``goal`` is the metric to look at; None: what decides which weights are best.
    """

    def __init__(self, patience: int, goal: Goal | None = None) -> None:
        self.patience = patience
        self.goal = goal
        self.best = math.nan
        self.best_step = 0
        self.num_worse = 0  # validations since the best one

    def after_validation(self, moment: Moment) -> str | None:
        is_better = moment.is_best
        if self.goal is not None:
            before = {self.goal.metric: self.best} if self.best_step else {}
            is_better = self.goal.better(moment.metrics, before)
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

    The time is compared at each report and validation.
    """

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
    """Calls watchers by name. All ranks have the same names, and rank 0 calls them.

    ``packages`` are prefixes of the user's module names, for messages. ``asks`` is whether a
    watcher of this rank wants to stop.
    """

    def __init__(
        self,
        watchers: Mapping[str, Watcher],
        parallel: Parallel,
        run_dir: Path | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.is_on = bool(watchers)
        self.asks = False
        self.run_dir = run_dir
        self._reason = ""
        self._parallel = parallel
        self._packages = packages
        self._watchers: Mapping[str, Watcher] = watchers if parallel.rank == 0 else {}
        self.state_dict()  # which must not fail at the first save: ConfigError C334

    def call(
        self, method: Callable[[Watcher], Callable[[Moment], str | None]], moment: Moment
    ) -> None:
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
        if not self.is_on:
            return ""
        # a space, since ranks cannot gather nothing
        words = torch.tensor(list(f" {self._reason}".encode()), dtype=torch.uint8)
        return bytes(self._parallel.gather(words)[0].tolist()).decode().strip()

    def _called(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a watcher. An error names the user's file and line."""
        try:
            return call(*arguments)
        except Exception as error:
            about = f"{name}.{call.__name__}"
            raise_if_user_error(error, self._packages, about, f"correct it, or leave {name} out")
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return what each watcher remembers, and the reason that is not agreed on yet.

        ConfigError C334 for what no state can hold.
        """
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
