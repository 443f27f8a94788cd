"""Send what tracking servers have missed of runs that have ended."""

import os
from collections.abc import Sequence
from pathlib import Path

from framework.cli.allowed import names_no_server
from framework.cli.run_records import LOCK, RunRecord, read_record, running_by
from framework.cli.tables import plural
from framework.errors import ConfigError, ResourceError, say
from framework.sink.base import Outbox, Tracker, reason_of
from framework.sink.mlflow import NAME as MLFLOW
from framework.sink.mlflow import MLflowTracker
from framework.sink.wandb import NAME as WANDB
from framework.sink.wandb import WandbTracker
from framework.system.durable import locked
from framework.system.run_dir import FACTS, check_entry, is_file, own_files


def send(paths: Sequence[Path]) -> None:
    """Send the events that wait in the run directories.

    ConfigError C375 (no run), C379 (no server on the web); ResourceError R190 (it is running), R192
    (a server does not take an event).
    """
    for path in paths:
        check_entry(path)
        if not is_file(path / FACTS):
            fix = "name the directory of a run, as 'paceline runs' lists it"
            raise ConfigError(375, str(path), f"is no run directory: it has no {FACTS}", fix)
        if owner := running_by(path):
            fix = "it sends its events itself; wait until it ends"
            raise ResourceError(190, str(path), f"{owner} is training there", fix)
        run = read_record(path)
        with locked(path / LOCK, lambda _: None, needed=False):
            own_files(path)
            names = [name for name in (MLFLOW, WANDB) if is_file(path / "outbox" / f"{name}.jsonl")]
            for name in names:
                _send(run, name)
        if not names:
            say(f"{path}: no tracking server was chosen")


def _send(run: RunRecord, name: str) -> None:
    """Send the events of one outbox, and end those of a run that was killed."""
    outbox = Outbox(run.path, name)
    checkpoints = outbox.state.get("checkpoints") is not False
    tracker: Tracker
    if name == MLFLOW:
        tracker = _mlflow_tracker(outbox)
    else:
        project, title = (outbox.state.get(key) or "paceline" for key in ("project", "name"))
        tracker = WandbTracker(outbox, str(project), str(title), say)
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
        what = f"could not be sent to {name} ({reason_of(error)})"
        fix = "try again when the server is back"
        raise ResourceError(192, str(run.path), what, fix) from error
    say(f"{run.path}: {plural(count, 'event')} sent to {name}")


def _mlflow_tracker(outbox: Outbox) -> MLflowTracker:
    """Return the tracker of the server that the environment names.

    The directory may be somebody else's, and the server gets the user's token.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    known = str(outbox.state.get("uri"))
    if not uri and known.startswith("sqlite:") and names_no_server(known):
        uri = known
    if not uri:
        where = f"{outbox.run_dir}: {known}"[:200]
        what = "is where the run was sent, and a file must not choose who gets your token"
        raise ConfigError(379, where, what, "if you trust it, set MLFLOW_TRACKING_URI to it")
    experiment, name = (str(outbox.state.get(key)) for key in ("experiment", "name"))
    return MLflowTracker(outbox, uri, experiment, name)
