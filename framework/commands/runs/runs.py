"""``paceline runs [FOLDER]``: list runs, or send what a tracking server missed."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, final

import numpy as np
from omegaconf import DictConfig

from framework.cli.arguments import option, plain_words, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.cli.run_choices import UNKNOWN, chosen, varying
from framework.cli.units import plain, plural, seconds, size
from framework.commands.print_table import print_table
from framework.commands.runs.listed_run import ListedRun, read_listed, run_dirs
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError, did_you_mean, listed, say

ACTIONS = ("list", "send")
FACTS = ("name", "status", "code", "started", "steps", "time_s", "disk_bytes")
MOST_CHOICES = 6  # columns of the table
MOST_METRICS = 3
RULES = {
    "action": Rule(str, choices=ACTIONS),
    "folder": Rule(str, means="a path"),
    "runs": Rule(list[str], means="a list of paths"),
    "where": Rule(str | None, means="a comparison, as in 'accuracy > 0.9'"),
    "sort": Rule(str | None, means="a key"),
    "json": Rule(bool),
}


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are an action, and paths."""
    words = ["json=true" if word == "--json" else word for word in arguments]
    if words[:1] != ["-sc"]:
        words = _with_keys(words)
    return run_app("runs", words, lambda cfg: told(partial(_runs, cfg)))


def _with_keys(words: list[str]) -> list[str]:
    """Return the words with ``action=``, ``folder=`` and ``runs=`` for the plain ones."""
    plain = plain_words(words)
    keys = [word for word in words if word not in plain]
    action = option(keys, "action")
    if action is None and plain and plain[0] in ACTIONS:
        action = plain.pop(0)
        keys.append(f"action={action}")
    if not plain:
        return keys
    key = "folder" if action in (None, "list") else "runs"
    if option(keys, key) is not None:
        raise ConfigError(100, " ".join(plain), f"stands beside {key}=", "give one or the other")
    if key == "runs":
        return [*keys, f"runs=[{','.join(map(quoted, plain))}]"]
    if len(plain) > 1:
        raise ConfigError(100, " ".join(plain), "names more than one folder", "give one")
    return [*keys, f"folder={quoted(plain[0])}"]


def _runs(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_values(config, RULES)
    action, paths = config["action"], config["runs"]
    if action == "send":
        if not paths:
            fix = "name them: paceline runs send RUN ..."
            raise ConfigError(371, "runs = []", "names no run to send", fix)
        for key in ("where", "sort", "json"):
            if config[key]:
                where = f"{key} = {config[key]}"[:200]
                raise ConfigError(372, where, "is not read by action=send", "leave it out")
        from framework.commands.runs.send_runs import send  # noqa: PLC0415  # loads torch

        send([Path(name) for name in paths])
        return RunOutcome(0, "sent")
    if paths:
        fix = "list the runs below a folder: paceline runs FOLDER"
        raise ConfigError(372, f"runs = {paths}"[:200], "is not read by action=list", fix)
    folder = Path(config["folder"])
    if not folder.is_dir():
        fix = "give the folder of runs: paceline runs FOLDER"
        raise ConfigError(373, f"folder = {folder}", "no such folder", fix)
    runs = chosen_runs(map(read_listed, run_dirs(folder)), config["where"], config["sort"])
    if config["json"]:
        print_json(runs)
    else:
        print_runs(runs, folder)
    return RunOutcome(0, "listed")


def chosen_runs(runs: Iterable[ListedRun], where: str | None, sort: str | None) -> list[ListedRun]:
    """Return the runs that fulfil ``where``, sorted by the key ``sort``.

    The least comes first, or with ``-`` before the key the greatest; unknown values come last.

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
    if sort is None or not result:
        return result
    name = sort.removeprefix("-")
    run_values = RunValues(result)
    values = run_values.answer(name)
    if values is None:
        what = f"is no value of these runs{did_you_mean(name, run_values.names)}"
        raise ConfigError(374, f"sort = {sort}", what, f"choose from {listed(run_values.names)}")
    known: list[tuple[Any, ListedRun]] = []
    unknown: list[ListedRun] = []
    for value, run in zip(values.tolist(), result, strict=True):
        if value == "" or (isinstance(value, float) and math.isnan(value)):
            unknown.append(run)
        else:
            known.append((value, run))
    known.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    return [*(run for _, run in known), *unknown]


@final
class RunValues:
    """What a comparison may ask about runs."""

    classes = ()

    def __init__(self, runs: Sequence[ListedRun]) -> None:
        self._runs = runs

    @property
    def names(self) -> list[str]:
        """Facts, metrics, and the options that were typed; every other option has a name, too."""
        metrics = [name for run in self._runs for name in run.metrics]
        choices = [name for run in self._runs for name in run.choices]
        return list(dict.fromkeys([*FACTS, *metrics, *choices]))

    def answer(self, name: str) -> np.ndarray | None:
        """Return a number of each run, or a text if any run has one; NaN or "" if unknown."""
        values = [self._value(run, name) for run in self._runs]
        if all(value is None for value in values) and name not in self.names:
            return None
        if any(isinstance(value, str | list | dict) for value in values):
            return np.array(["" if value is None else str(value) for value in values])
        return np.array([math.nan if value is None else float(value) for value in values])

    def _value(self, run: ListedRun, name: str) -> Any:
        if name in FACTS:
            return getattr(run, name)
        for known in (run.metrics, run.config):
            if name in known:
                return known[name]
        choice = chosen(run, name)
        return None if choice == UNKNOWN else choice


def print_runs(runs: Sequence[ListedRun], folder: Path) -> None:
    """Print a row per run. Of the choices, only those that differ are shown."""
    if not runs:
        say(f"no runs in {folder}")
        return
    keys = varying(runs)
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    shown_keys, shown_metrics = keys[:MOST_CHOICES], metrics[:MOST_METRICS]
    places = [os.path.relpath(run.path, folder) for run in runs]
    names = [run.name if p == "." else p for run, p in zip(runs, places, strict=True)]
    rows: list[list[str]] = []
    for run, name in zip(runs, names, strict=True):
        rows.append(
            [
                name,
                f"{run.status} ({run.code})" if run.code else run.status,
                *(chosen(run, key) for key in shown_keys),
                *(plain(run.metrics.get(metric)) for metric in shown_metrics),
                plain(run.steps),
                seconds(run.time_s),
                size(run.disk_bytes),
                run.started[5:16].replace("T", " "),  # without the year and the seconds
            ]
        )
    left = ("run", "status", *shown_keys)
    right = (*(f"best {name}" for name in shown_metrics), "steps", "time", "disk")
    total = size(sum(run.disk_bytes for run in runs))
    whole = ("run", "status", "started")  # names are typed again
    print_table(f"{plural(len(runs), 'run')}, {total}", left, right, rows, ("started",), whole)
    hidden = [*keys[MOST_CHOICES:], *metrics[MOST_METRICS:]]
    if hidden:
        say(f"not shown, see json=true: {', '.join(hidden)}")
    for run, name in zip(runs, names, strict=True):
        if run.status in ("failed", "damaged", "running") and run.reason:
            say(f"{name}: {run.status}: {run.reason}")


def print_json(runs: Sequence[ListedRun]) -> None:
    """Print all that is known of each run, as a list of objects; NaN and infinity become null."""
    facts = ("status", "code", "reason", "started", "steps", "time_s", "disk_bytes")
    objects: list[dict[str, Any]] = []
    for run in runs:
        known = {"path": str(run.path), **{name: getattr(run, name) for name in facts}}
        for name, values in (("best", run.best), ("val", run.val)):
            known[name] = {key: v if math.isfinite(v) else None for key, v in values.items()}
        objects.append({**known, "choices": dict(run.choices), "config": dict(run.config)})
    print(json.dumps(objects))
