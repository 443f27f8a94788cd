"""What looks at a run's validation: further metrics, what is best, and the watchers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from framework.config.assemble import Assembly
from framework.config.build import build
from framework.config.preflight import ModelTrial
from framework.config.resume import PATIENCE
from framework.config.schema import seconds_of
from framework.config.targets import Config
from framework.contracts.parallel import Parallel
from framework.contracts.training import Objective, Watcher
from framework.errors import ConfigError
from framework.system.extras import needed
from framework.train.watching import (
    EarlyStop,
    Goal,
    Idle,
    TimeBudget,
    Watching,
    unknown_metric,
    value_of,
)

if TYPE_CHECKING:
    from framework.train.torch_metrics import TorchMetrics

BUDGET = "stop.after"


def make_metrics(
    config: Config,
    allowed: Sequence[str],
    parallel: Parallel,
    say: Callable[[str], None],
    classes: Sequence[str],
) -> "TorchMetrics | None":
    """Build the metrics that the configuration names; None without any. Notes name ``classes``.

    ResourceError R112 without TorchMetrics, ConfigError C332 for what is no metric.
    """
    blocks = config.get("metrics") or {}
    if not blocks:
        return None
    needed("torchmetrics", "metrics")
    from framework.train.torch_metrics import TorchMetrics  # noqa: PLC0415  # an extra

    built = {name: build(f"metrics.{name}", blocks[name], allowed) for name in blocks}
    return TorchMetrics(built, parallel, say, classes)


def try_metrics(metrics: "TorchMetrics", trial: ModelTrial) -> ModelTrial:
    """Return the trial with the metrics of its predictions.

    ConfigError C332 if they do not fit the predictions, or have a name of the objective's.
    """
    means = metrics.tried(trial.predictions)
    if both := sorted({*means, *metrics.names} & {*trial.means, "step"}):
        what = "is the name of a metric that the objective has already"
        raise ConfigError(332, f"metrics.{both[0]}", what, "rename or remove it")
    return trial._replace(means={**trial.means, **means})


def make_goal(
    key: str,
    assembly: Assembly,
    objective: Objective,
    trial: ModelTrial,
    metrics: "TorchMetrics | None",
) -> Goal | None:
    """Return the goal of the block ``best`` or ``stop``; None if it names no metric.

    Raises:
        ConfigError: C331 for an unknown metric, C338 if nothing tells its direction.
    """
    block = assembly.config[key]
    metric = block["metric"]
    if metric is None:
        return None
    where = f"{key}.metric"
    check_metric(where, metric, assembly, trial)
    if block["mode"] != "auto":
        return Goal(metric, block["mode"] == "max", where)
    own = metric
    for name in assembly.val_sources:
        own = own.removeprefix(f"{name}.")
    higher = metrics.higher_is_better(own) if metrics is not None else None
    if higher is None:
        higher = _direction(own, objective, trial)
    if higher is None:
        what = f"nothing tells whether a higher {own} is better"
        raise ConfigError(338, f"{key}.mode = auto", what, f"set {key}.mode=max, or min")
    return Goal(metric, higher, where)


def check_metric(where: str, metric: str, assembly: Assembly, trial: ModelTrial) -> None:
    """Check that the validation will have a metric. ConfigError C331.

    Args:
        where: The option that names it.
        metric: Its name, with or without that of a validation set.
        assembly: The data.
        trial: The metrics of the objective.
    """
    means = trial.means
    if sets := [name for name in assembly.val_sources if name]:
        means = {f"{name}.{own}": mean for name in sets for own, mean in trial.means.items()}
    if value_of(means, metric) is None:
        raise unknown_metric(where, metric, means)


def _direction(metric: str, objective: Objective, trial: ModelTrial) -> bool | None:
    """Return whether the objective prefers a higher metric; None if it does not compare it."""
    if metric in ("loss", *trial.losses):
        return False
    low = dict.fromkeys(trial.means, 0.0)
    high = {**low, metric: 1.0}
    prefers = objective.better(high, low), objective.better(low, high)
    return prefers[0] if prefers[0] != prefers[1] else None


def make_watching(assembly: Assembly, run_dir: Path | None, stop_goal: Goal | None) -> Watching:
    """Build the watchers of a run: the user's, then those of ``stop``.

    ConfigError C333 for an object that is no watcher, C334 for a state that cannot be saved.
    """
    config = assembly.config
    watchers: dict[str, Watcher] = {}
    for name, block in (config.get("watchers") or {}).items():
        watcher = build(f"watchers.{name}", block, assembly.allowed) if assembly.leads else Idle()
        if not isinstance(watcher, Watcher):
            what = f"makes an object of class {type(watcher).__name__}, which is no Watcher"
            fix = "inherit from framework.Watcher, and write the methods that you need"
            raise ConfigError(333, f"watchers.{name}", what, fix)
        watchers[f"watchers.{name}"] = watcher
    stop = config["stop"]
    if stop["patience"] is not None:
        watchers[PATIENCE] = EarlyStop(stop["patience"], stop_goal)
    if stop["after"] is not None:
        watchers[BUDGET] = TimeBudget(seconds_of(BUDGET, stop["after"]))
    return Watching(watchers, assembly.parallel, run_dir, assembly.allowed)
