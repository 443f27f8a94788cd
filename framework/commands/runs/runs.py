"""``paceline runs [FOLDER]``: list runs, or send what a tracking server missed."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, final

import numpy as np

from framework.cli import run_records
from framework.cli.arguments import names_no_server
from framework.cli.outcome import RunOutcome, option, run_options
from framework.cli.run_records import RunRecord, chosen, read_record
from framework.cli.tables import plain, plural, print_table, seconds, size
from framework.errors import ConfigError, ResourceError, did_you_mean, listed, say
from framework.system import run_dir
from framework.system.durable import locked

ACTIONS = ("list", "send")
FACTS = ("status", "code", "reason", "started", "steps", "time_s", "disk_bytes")
MOST_CHOICES = 6  # columns of the table
MOST_METRICS = 3


@dataclass(frozen=True)
class RunsOptions:
    """List the runs below a folder, or send what a tracking server missed."""

    action: str = option(
        "list", "list or send; 'paceline runs send RUN ...' is short for both", choices=ACTIONS
    )
    folder: str = option("outputs", "the runs below it are listed")
    runs: list[str] = option([], "the directories whose events send sends", means="a list of paths")
    where: str | None = option(
        None, """only these runs, as in where='status == "failed" or accuracy < 0.5'"""
    )
    tags: list[str] = option([], "only runs that have all these tags")
    sort: str | None = option(
        None,
        "list by status, time_s, disk_bytes, accuracy, optim.lr, ...; sort=-accuracy: the greatest "
        "first",
    )
    json: bool = option(False, "or --json: the list as JSON")


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are an action, and paths."""
    words = list(arguments)
    action = next((word for word in words if word in ACTIONS), "list")
    if action in words:
        words[words.index(action)] = f"action={action}"
    return run_options("runs", words, RunsOptions, _runs, "runs" if action == "send" else "folder")


def _runs(options: RunsOptions, _: Path) -> RunOutcome:
    if options.action == "send":
        if not options.runs:
            fix = "name them: paceline runs send RUN ..."
            raise ConfigError(371, "runs = []", "names no run to send", fix)
        for key in ("where", "tags", "sort", "json"):
            if value := getattr(options, key):
                where = f"{key} = {value}"[:200]
                raise ConfigError(372, where, "is not read by action=send", "leave it out")
        send([Path(name) for name in options.runs])
        return RunOutcome(0, "sent")
    if options.runs:
        fix = "list the runs below a folder: paceline runs FOLDER"
        raise ConfigError(372, f"runs = {options.runs}"[:200], "is not read by action=list", fix)
    folder = Path(options.folder)
    if not folder.is_dir():
        fix = "give the folder of runs: paceline runs FOLDER"
        raise ConfigError(373, f"folder = {folder}", "no such folder", fix)
    records = map(read_record, run_records.run_dirs(folder))
    tagged = (run for run in records if {*options.tags} <= {*run.tags})
    runs = chosen_runs(tagged, options.where, options.sort)
    if options.json:
        print_json(runs)
    else:
        print_runs(runs, folder)
    return RunOutcome(0, "listed")


def chosen_runs(runs: Iterable[RunRecord], where: str | None, sort: str | None) -> list[RunRecord]:
    """Return the runs that fulfil ``where``, by the key ``sort``: the least first, with ``-`` last.

    Unknown values come last. ConfigError C204 for a wrong comparison, C374 for an unknown key.
    """
    result = list(runs)
    if where is not None and result:
        # This loads torch, which a list without it need not wait for.
        from framework.order.select import ExpressionWords, truths  # noqa: PLC0415

        fix = """compare values of runs, as in where='status == "failed" or accuracy < 0.5'"""
        mask = truths(where, RunValues(result), len(result), ExpressionWords("where", "run", fix))
        result = [run for run, is_chosen in zip(result, mask, strict=True) if is_chosen]
    if sort is None or not result:
        return result
    name = sort.removeprefix("-")
    run_values = RunValues(result)
    values = run_values.answer(name)
    if values is None:
        what = f"is no value of these runs{did_you_mean(name, run_values.names)}"
        raise ConfigError(374, f"sort = {sort}", what, f"choose from {listed(run_values.names)}")
    known: list[tuple[Any, RunRecord]] = []
    unknown: list[RunRecord] = []
    for value, run in zip(values.tolist(), result, strict=True):
        if value == "" or (isinstance(value, float) and math.isnan(value)):
            unknown.append(run)
        else:
            known.append((value, run))
    known.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    return [*(run for _, run in known), *unknown]


@final
@dataclass
class RunValues:
    """What a comparison may ask about runs."""

    runs: Sequence[RunRecord]
    classes: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Facts, metrics, and the options that were typed; every other option has a name, too."""
        metrics = [name for run in self.runs for name in run.metrics]
        choices = [name for run in self.runs for name in run.choices]
        return list(dict.fromkeys(["name", *FACTS, *metrics, *choices]))

    def answer(self, name: str) -> np.ndarray | None:
        """Return a number of each run, or a text if any run has one; NaN or "" if unknown."""
        values: list[Any] = []
        for run in self.runs:
            value = run.metrics.get(name, run.config.get(name))
            if name in ("name", *FACTS):
                value = getattr(run, name)
            elif name not in run.metrics and name not in run.config:
                choice = chosen(run, name)
                value = None if choice == run_records.UNKNOWN else choice
            values.append(value)
        if all(value is None for value in values) and name not in self.names:
            return None
        if any(isinstance(value, str | list | dict) for value in values):
            return np.array(["" if value is None else str(value) for value in values])
        return np.array([math.nan if value is None else float(value) for value in values])


def print_runs(runs: Sequence[RunRecord], folder: Path) -> None:
    """Print a row per run. Of the choices, only those that differ are shown."""
    if not runs:
        say(f"no runs in {folder}")
        return
    keys = run_records.varying(runs)
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    shown_keys, shown_metrics = keys[:MOST_CHOICES], metrics[:MOST_METRICS]
    has_tags = any(run.tags for run in runs)
    rows: list[list[str]] = []
    reasons: list[str] = []
    total_bytes = 0
    for run in runs:
        place = os.path.relpath(run.path, folder)
        name = run.name if place == "." else place
        num_bytes = run.disk_bytes
        total_bytes += num_bytes
        row = [name, f"{run.status} ({run.code})" if run.code else run.status]
        row += [chosen(run, key) for key in shown_keys]
        if has_tags:
            row.append(", ".join(run.tags))
        row += [plain(run.metrics.get(metric)) for metric in shown_metrics]
        row += [plain(run.steps), seconds(run.time_s), size(num_bytes)]
        row.append(run.started[5:16].replace("T", " "))  # without the year and the seconds
        rows.append(row)
        if run.status in ("failed", "damaged", "running") and run.reason:
            reasons.append(f"{name}: {run.status}: {run.reason}")
    left = ("run", "status", *shown_keys, *(["tags"] if has_tags else []))
    right = (*(f"best {name}" for name in shown_metrics), "steps", "time", "disk")
    title = f"{plural(len(runs), 'run')}, {size(total_bytes)}"
    whole = ("run", "status", "started")  # names are typed again
    print_table(title, left, right, rows, ("started",), whole)
    if hidden := [*keys[MOST_CHOICES:], *metrics[MOST_METRICS:]]:
        say(f"not shown, see json=true: {', '.join(hidden)}")
    for reason in reasons:
        say(reason)


def print_json(runs: Sequence[RunRecord]) -> None:
    """Print all that is known of each run, as a list of objects; NaN and infinity become null."""
    objects: list[dict[str, Any]] = []
    for run in runs:
        known = {"path": str(run.path), **{name: getattr(run, name) for name in FACTS}}
        known["tags"] = list(run.tags)
        for name, values in (("best", run.best), ("val", run.val)):
            known[name] = {key: v if math.isfinite(v) else None for key, v in values.items()}
        objects.append({**known, "choices": dict(run.choices), "config": dict(run.config)})
    print(json.dumps(objects))


def send(paths: Sequence[Path]) -> None:
    """Send the events that wait in the run directories.

    ConfigError C375 (no run), C379 (no server on the web); ResourceError R190 (it is running), R192
    (a server does not take an event).
    """
    for path in paths:
        run_dir.check_entry(path)
        if not run_dir.is_file(path / run_dir.FACTS):
            what = f"is no run directory: it has no {run_dir.FACTS}"
            fix = "name the directory of a run, as 'paceline runs' lists it"
            raise ConfigError(375, str(path), what, fix)
        if owner := run_records.running_by(path):
            fix = "it sends its events itself; wait until it ends"
            raise ResourceError(190, str(path), f"{owner} is training there", fix)
        run = read_record(path)
        with locked(path / run_records.LOCK, lambda _: None, needed=False):
            run_dir.own_files(path)
            files = {name: path / "outbox" / f"{name}.jsonl" for name in ("mlflow", "wandb")}
            names = [name for name, file in files.items() if run_dir.is_file(file)]
            for name in names:
                _send(run, name)
        if not names:
            say(f"{path}: no tracking server was chosen")


def _send(run: RunRecord, server: str) -> None:
    # These load torch, which a list need not wait for.
    from framework.sink.base import Outbox, Tracker, reason_of  # noqa: PLC0415
    from framework.sink.mlflow import MLflowTracker  # noqa: PLC0415
    from framework.sink.wandb import WandbTracker  # noqa: PLC0415

    outbox = Outbox(run.path, server)
    checkpoints = outbox.state.get("checkpoints") is not False
    tracker: Tracker
    if server == "mlflow":
        # The directory may be somebody else's, and the server gets the user's token.
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        known = str(outbox.state.get("uri"))
        if not uri and known.startswith("sqlite:") and names_no_server(known):
            uri = known
        if not uri:
            where = f"{outbox.run_dir}: {known}"[:200]
            what = "is where the run was sent, and a file must not choose who gets your token"
            raise ConfigError(379, where, what, "if you trust it, set MLFLOW_TRACKING_URI to it")
        experiment, name = (str(outbox.state.get(key)) for key in ("experiment", "name"))
        tracker = MLflowTracker(outbox, uri, experiment, name)
    else:
        project, name = (outbox.state.get(key) or "paceline" for key in ("project", "name"))
        tracker = WandbTracker(outbox, str(project), str(name), say)
    status = {"finished": "FINISHED", "failed": "FAILED"}.get(run.status, "KILLED")
    outbox.end(status, run.steps or 0, checkpoints)
    count = outbox.num_waiting()
    try:
        while not outbox.send(tracker):
            pass
        tracker.close()
    except (ConfigError, ResourceError):
        raise
    except Exception as error:
        what = f"could not be sent to {server} ({reason_of(error)})"
        fix = "try again when the server is back"
        raise ResourceError(192, str(run.path), what, fix) from error
    say(f"{run.path}: {plural(count, 'event')} sent to {server}")
