"""MLflow: configuration, curves, pictures and checkpoints on a tracking server."""

import json
import os
import re
import uuid
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from framework.contracts.training import RunContext
from framework.errors import ConfigError, words_of
from framework.sink.outbox import Event, Outbox, StartOver
from framework.sink.tracked_sink import TrackedSink, inside, read_config
from framework.system.extras import needed
from framework.system.run_dir import redacted

NAME = "mlflow"
# The limits of MLflow's server.
MOST_METRICS = 1000
MOST_PARAMS = 100
LONGEST_KEY = 250
LONGEST_VALUE = 6000
# A request that fails is repeated by our thread, which can be told to stop.
CLIENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@final
class MLflowSink(TrackedSink):
    """Sends a run to an MLflow server, from a thread that the run never waits for.

    What cannot be sent stays in ``run_dir/outbox``, and is sent when the server is back, when the
    run is resumed, or by ``paceline runs send``. A resumed run continues the same MLflow run.

    Args:
        uri: The tracking server; None: as ``MLFLOW_TRACKING_URI`` says.
        experiment: The experiment's name. It is made if there is none.
        name: The run's name; None: that of its directory.
        num_images: As in TrackedSink, and so are the others.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        name: str | None,
        num_images: int,
        checkpoints: bool,
        every_s: float,
        close_s: float,
        *,
        run: RunContext,
    ) -> None:
        # the names are sent as typed, with ${oc.env:NAME} in place of a value
        shown = redacted(name or run.run_dir.resolve().name)
        tracker = MLflowTracker(uri, redacted(experiment), shown)
        super().__init__(NAME, tracker, num_images, checkpoints, every_s, close_s, run)


@final
class MLflowTracker:
    """Sends events to an MLflow server.

    ConfigError C370 without an address that MLflow can use.
    """

    def __init__(self, uri: str | None, experiment: str, name: str) -> None:
        needed("mlflow", "mlflow")
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not self._uri:
            what = "names no tracking server"
            fix = "give sink.mlflow.uri=http://HOST:PORT, or set MLFLOW_TRACKING_URI"
            raise ConfigError(370, "sink.mlflow.uri = null", what, fix)
        for variable, value in CLIENT.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient  # noqa: PLC0415  # takes a second, and reads the variables

        try:
            self._client = MlflowClient(tracking_uri=self._uri)
        except Exception as error:  # of MLflow, SQLAlchemy, or a database's driver
            shown = without_user(self._uri)
            reason = words_of(error, 10_000).replace(self._uri, shown)[:300]
            what = f"names no server or database that this MLflow can use ({reason})"
            fix = "give http://HOST:PORT or sqlite:///FILE"
            raise ConfigError(370, f"sink.mlflow.uri = {shown}", what, fix) from error
        self._experiment = experiment
        self._name = name

    def prepare(self, outbox: Outbox, checkpoints: bool) -> None:
        """Remember in the outbox what sends it again. Another server gets all events."""
        server = without_user(self._uri)
        if outbox.state.get("uri") not in (None, server):
            outbox.state = {}
            outbox.start_over()
        outbox.state |= {
            "uri": server,
            "experiment": self._experiment,
            "name": self._name,
            "checkpoints": checkpoints,
        }
        outbox.save()

    def send(self, outbox: Outbox, events: Sequence[Event]) -> None:
        run_id = self._run_id(outbox)
        ahead = list(outbox.ahead)
        metrics: list[Any] = []
        for event in events:
            if "report" in event:
                if not self._is_there(outbox, ahead, event):
                    metrics += _metrics(event)
                continue
            self._log_metrics(run_id, metrics)
            metrics = []
            if "begin" in event:
                self._begin(run_id, read_config(inside(outbox.run_dir, event["begin"])))
            elif "files" in event:
                self._upload(run_id, outbox, event["files"])
            elif "end" in event:
                self._client.set_terminated(run_id, event["end"], event["time_ms"])
        self._log_metrics(run_id, metrics)
        outbox.ahead = ahead

    def close(self) -> None:
        pass

    def _run_id(self, outbox: Outbox) -> str:
        """Return the id of the run on the server, which is made if there is none."""
        state = outbox.state
        if "run_id" in state and not self._made(state["run_id"], state.get("token")):
            del state["run_id"]
        if "run_id" not in state:
            if "token" not in state:  # saved first: a run whose answer is lost is found by it
                state["token"] = uuid.uuid4().hex
                outbox.save()
            experiment_id = self._experiment_id()
            tags = {"paceline.run": state["token"]}
            wanted = f"tags.`paceline.run` = '{state['token']}'"
            if same := self._client.search_runs([experiment_id], wanted):
                run = same[0]
            else:
                run = self._client.create_run(experiment_id, tags=tags, run_name=self._name)
            state["run_id"] = run.info.run_id
            outbox.save()
        if "replaces" in state:
            if self._made(state["replaces"], state.get("replaced")):
                self._client.delete_run(state["replaces"])
            del state["replaces"]
            outbox.save()
        return state["run_id"]

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            return self._client.create_experiment(self._experiment)
        except MlflowException as error:
            known = self._client.get_experiment_by_name(self._experiment)
            if known is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return known.experiment_id

    def _made(self, run_id: str, token: object) -> bool:
        """Return whether a run of the server, not deleted, was made with the outbox's token.

        The outbox may be somebody else's, and name any run.
        """
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return False
        is_active = run.info.lifecycle_stage == "active"
        return is_active and token is not None and run.data.tags.get("paceline.run") == token

    def _begin(self, run_id: str, config: dict[str, str]) -> None:
        """Log the configuration. A value that a resumed run has changed becomes a tag."""
        from mlflow.entities import Param, RunTag  # noqa: PLC0415

        self._client.update_run(run_id, "RUNNING")
        known = self._client.get_run(run_id).data.params
        new: list[Any] = []
        changed: list[Any] = []
        for name, value in config.items():
            key, text = _key(name), value[:LONGEST_VALUE]
            if key not in known:
                new.append(Param(key, text))
            elif known[key] != text:
                changed.append(RunTag(f"changed.{key}"[:LONGEST_KEY], text))
        for start in range(0, len(new), MOST_PARAMS):
            self._client.log_batch(run_id, params=new[start : start + MOST_PARAMS])
        for start in range(0, len(changed), MOST_PARAMS):
            self._client.log_batch(run_id, tags=changed[start : start + MOST_PARAMS])

    def _upload(self, run_id: str, outbox: Outbox, files: Sequence[str]) -> None:
        """Upload files of the run directory that are there and have changed since."""
        uploaded = outbox.state.setdefault("files", {})
        for name in files:
            path = inside(outbox.run_dir, name)
            if path is None:
                continue
            stat = path.stat()
            identity = [stat.st_mtime_ns, stat.st_size]
            if uploaded.get(name) != identity:
                folder = str(Path(name).parent)
                self._client.log_artifact(run_id, str(path), None if folder == "." else folder)
                uploaded[name] = identity
                outbox.save()

    def _is_there(self, outbox: Outbox, ahead: list[Event], event: Event) -> bool:
        """Return whether the server has a report from before the run was resumed.

        A server cannot delete values. A resumed run usually learns the same again, and such reports
        are not sent twice. If it learns something else, the run is replaced by a new one.
        """
        past = takewhile(lambda report: report["step"] <= event["step"], ahead)
        old = [report for report in past if report["report"] == event["report"]]
        if not old:
            return False
        # As texts, NaN equals NaN.
        facts = [json.dumps([of["step"], of["learned"]]) for of in (event, *old)]
        if len(old) == 1 and facts[0] == facts[1]:
            ahead.remove(old[0])
            return True
        outbox.state["replaces"] = outbox.state.pop("run_id")
        outbox.state["replaced"] = outbox.state.pop("token", None)
        outbox.state.pop("files", None)
        raise StartOver

    def _log_metrics(self, run_id: str, metrics: list[Any]) -> None:
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])


def _metrics(event: Event) -> list[Any]:
    from mlflow.entities import Metric  # noqa: PLC0415

    values = {**event["learned"], **event["measured"]}
    time_ms, step = event["time_ms"], event["step"]
    return [Metric(_key(name), value, time_ms, step) for name, value in values.items()]


def _key(name: str) -> str:
    """Return a name with characters that every MLflow server takes."""
    return re.sub(r"[^\w. /-]", "_", name, flags=re.ASCII)[:LONGEST_KEY]


def without_user(uri: str) -> str:
    """Return an address without the user's name and password, which no file may hold."""
    if "@" not in uri:
        return uri
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
