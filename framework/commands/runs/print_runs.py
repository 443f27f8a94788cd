"""Print a list of runs as a table or as JSON."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framework.cli.print_table import print_table
from framework.cli.units import plain, plural, seconds, size
from framework.commands.report.compare_runs import chosen, varying
from framework.commands.runs.run_listing import ListedRun
from framework.errors import say

MOST_CHOICES = 6  # columns of the table
MOST_METRICS = 3


def print_runs(runs: Sequence[ListedRun], folder: Path) -> None:
    """Print a row per run. Of the choices, only those that differ are shown."""
    if not runs:
        say(f"no runs in {folder}")
        return
    keys = varying([run.recorded for run in runs])
    metrics = list(dict.fromkeys(name for run in runs for name in run.best or run.val))
    shown_metrics = metrics[:MOST_METRICS]
    rows = [_row(run, folder, keys[:MOST_CHOICES], shown_metrics) for run in runs]
    left = ("run", "status", *keys[:MOST_CHOICES])
    right = (*(f"best {name}" for name in shown_metrics), "steps", "time", "disk")
    total = size(sum(run.disk_bytes for run in runs))
    whole = ("run", "status", "started")  # names are typed again
    print_table(f"{plural(len(runs), 'run')}, {total}", left, right, rows, ("started",), whole)
    hidden = [*keys[MOST_CHOICES:], *metrics[MOST_METRICS:]]
    if hidden:
        say(f"not shown, see json=true: {', '.join(hidden)}")
    _print_reasons(runs, folder)


def _print_reasons(runs: Sequence[ListedRun], folder: Path) -> None:
    for run in runs:
        if run.state.status in ("failed", "damaged", "running") and run.state.reason:
            name = _name(run, folder)
            say(f"{name}: {run.state.status}: {run.state.reason}")


def print_json(runs: Sequence[ListedRun]) -> None:
    """Print all that is known of each run, as a list of objects."""
    print(json.dumps([_facts(run) for run in runs]))


def _row(
    run: ListedRun, folder: Path, keys: Sequence[str], metrics: Sequence[str]
) -> tuple[str, ...]:
    status = run.state.status
    if run.state.code:
        status = f"{status} ({run.state.code})"
    values = run.best or run.val
    return (
        _name(run, folder),
        status,
        *(chosen(run.recorded, key) for key in keys),
        *(plain(values.get(name)) for name in metrics),
        plain(run.steps),
        seconds(run.time_s),
        size(run.disk_bytes),
        run.started[5:16].replace("T", " "),  # without the year and the seconds
    )


def _name(run: ListedRun, folder: Path) -> str:
    name = os.path.relpath(run.path, folder)
    return run.recorded.name if name == "." else name


def _facts(run: ListedRun) -> dict[str, Any]:
    return {
        "path": run.recorded.place,
        "status": run.state.status,
        "code": run.state.code,
        "reason": run.state.reason,
        "started": run.started,
        "steps": run.steps,
        "time_s": run.time_s,
        "disk_bytes": run.disk_bytes,
        "best": _finite(run.best),
        "val": _finite(run.val),
        "choices": dict(run.recorded.choices),
        "config": dict(run.recorded.config),
    }


def _finite(values: Any) -> dict[str, float | None]:
    """Return numbers that every reader of JSON knows; NaN and infinity become null."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
