"""Send what tracking servers have missed of runs that have ended."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framework.cli.allowed import names_no_server
from framework.cli.units import plural
from framework.commands.runs.run_listing import ListedRun, read_listed
from framework.commands.runs.run_state import FAILED, FINISHED, LOCK, running_by
from framework.errors import ConfigError, ResourceError, say
from framework.sink.delivery import StartOver, Tracker, reason_of
from framework.sink.mlflow import NAME as MLFLOW
from framework.sink.mlflow import MLflowTracker
from framework.sink.outbox import Outbox
from framework.sink.tracked_sink import end_events
from framework.sink.wandb import NAME as WANDB
from framework.sink.wandb import WandbTracker
from framework.system.lock import locked
from framework.system.run_dir import FACTS, check_entry, is_file, own_files


def send(paths: Sequence[Path]) -> None:
    """Send the events that wait in the run directories.

    Raises:
        ConfigError: C375 for what is no run directory, C379 for a server that is not on the web.
        ResourceError: R190 if a run is running, R192 if a server does not take an event.
    """
    for path in paths:
        check_entry(path)
        _check_ended(path)
        run = read_listed(path)
        with locked(path / LOCK, lambda _: None, needed=False):
            own_files(path)
            names = [name for name in (MLFLOW, WANDB) if is_file(path / "outbox" / f"{name}.jsonl")]
            for name in names:
                _send(run, name)
        if not names:
            say(f"{path}: no tracking server was chosen")


def _check_ended(path: Path) -> None:
    """Check that a run was there, and is over. ConfigError C375 or ResourceError R190."""
    if not is_file(path / FACTS):
        fix = "name the directory of a run, as 'paceline runs' lists it"
        raise ConfigError(375, str(path), f"is no run directory: it has no {FACTS}", fix)
    owner = running_by(path)
    if owner:
        fix = "it sends its events itself; wait until it ends"
        raise ResourceError(190, str(path), f"{owner} is training there", fix)


def _send(run: ListedRun, name: str) -> None:
    """Send the events of one outbox, and end those of a run that was killed."""
    path = run.path
    outbox = Outbox(path, name)
    checkpoints = outbox.state.get("checkpoints") is not False
    tracker = _tracker(outbox, path, name, checkpoints)
    if not _has_ended(outbox):
        _end(outbox, run, checkpoints)
    count = outbox.num_waiting()
    try:
        _send_all(outbox, tracker)
    except (ConfigError, ResourceError):
        raise
    except Exception as error:
        what = f"could not be sent to {name} ({reason_of(error)})"
        raise ResourceError(192, str(path), what, "try again when the server is back") from error
    say(f"{path}: {plural(count, 'event')} sent to {name}")


def _tracker(outbox: Outbox, path: Path, name: str, checkpoints: bool) -> Tracker:
    if name == MLFLOW:
        return _mlflow_tracker(path, outbox.state)
    tracker = WandbTracker(_text(outbox, "project"), _text(outbox, "name"), say)
    tracker.prepare(outbox, checkpoints)
    return tracker


def _send_all(outbox: Outbox, tracker: Tracker) -> None:
    while True:
        batch = outbox.waiting()
        if not batch.events:
            break
        try:
            tracker.send(outbox, batch.events)
        except StartOver:
            outbox.start_over()
        else:
            outbox.mark_sent(batch.end)
    tracker.close()


def _mlflow_tracker(path: Path, state: dict[str, Any]) -> MLflowTracker:
    """Return the tracker of the server that the environment names.

    The directory may be somebody else's, and the server gets the user's token.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    known = str(state.get("uri"))
    if not uri and known.startswith("sqlite:") and names_no_server(known):
        uri = known
    if not uri:
        where = f"{path}: {known}"[:200]
        what = "is where the run was sent, and a file must not choose who gets your token"
        raise ConfigError(379, where, what, "if you trust it, set MLFLOW_TRACKING_URI to it")
    return MLflowTracker(uri, str(state.get("experiment")), str(state.get("name")))


def _has_ended(outbox: Outbox) -> bool:
    """Return whether the last event of a run is whole, and says how it ended."""
    last = b""
    with open(outbox.path, "rb") as file:
        for line in file:
            last = line
    try:
        return last.endswith(b"\n") and "end" in json.loads(last)
    except (ValueError, TypeError):
        return False


def _end(outbox: Outbox, run: ListedRun, checkpoints: bool) -> None:
    """Add the events that end a run."""
    status = {FINISHED: "FINISHED", FAILED: "FAILED"}.get(run.state.status, "KILLED")
    for event in end_events(status, run.steps or 0, checkpoints):
        outbox.append(event)
    outbox.close()


def _text(outbox: Outbox, key: str) -> str:
    return str(outbox.state.get(key) or "paceline")
