"""MLflow: configuration, curves, pictures and checkpoints on a tracking server."""

import os
import re
import uuid
from collections.abc import Sequence
from typing import final
from urllib.parse import urlsplit

from framework.contracts.training import RunContext
from framework.errors import ConfigError, words_of
from framework.sink.base import Event, Outbox, TrackedSink, Tracker, inside, read_config
from framework.system.run_dir import is_below, names_no_server, redacted
from framework.system.user_code import needed

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

    What cannot be sent stays in ``run_dir/outbox``, for a resumed run or ``paceline runs send``. A
    resumed run continues the same MLflow run. If the server has reports after its step, these stay
    beside the new ones. ``conf/sink/mlflow.yaml`` describes the options.
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
        outbox = Outbox(run.run_dir, NAME)
        # the names are sent as typed, with ${oc.env:NAME} in place of a value
        shown = redacted(name or run.run_dir.resolve().name)
        tracker = MLflowTracker(outbox, uri, redacted(experiment), shown)
        super().__init__(outbox, tracker, num_images, checkpoints, every_s, close_s, run)


@final
class MLflowTracker(Tracker):
    """Sends the events of an outbox. ConfigError C370 without an address that MLflow can use."""

    def __init__(self, outbox: Outbox, uri: str | None, experiment: str, name: str) -> None:
        needed("mlflow", "mlflow")
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            fix = "give sink.mlflow.uri=http://HOST:PORT, or set MLFLOW_TRACKING_URI"
            raise ConfigError(370, "sink.mlflow.uri = null", "names no tracking server", fix)
        for variable, value in CLIENT.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient  # noqa: PLC0415  # takes a second, and reads the variables

        shown = uri
        if "@" in uri:  # no file and no message may hold a password
            parts = urlsplit(uri)
            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        try:
            self._client = MlflowClient(tracking_uri=uri)
        except Exception as error:  # of MLflow, SQLAlchemy, or a database's driver
            reason = words_of(error, 10_000).replace(uri, shown)[:300]
            what = f"names no server or database that this MLflow can use ({reason})"
            fix = "give http://HOST:PORT or sqlite:///FILE"
            raise ConfigError(370, f"sink.mlflow.uri = {shown}", what, fix) from error
        self._outbox, self._uri = outbox, uri
        self._experiment = experiment
        self._name = name
        self._run_id = ""
        target = {"uri": shown, "experiment": experiment}
        if {key: outbox.state.get(key) for key in target} != target:  # gets all events
            outbox.state = {"token": uuid.uuid4().hex, **target}
            outbox.sent = 0
        outbox.state["name"] = name
        outbox.save()  # the token, before a run has it: a run whose answer is lost is found by it

    def send(self, events: Sequence[Event]) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        run_id = self._run_id = self._run_id or self._open()
        uploaded = self._outbox.state.setdefault("files", {})
        metrics: list[Metric] = []
        for event in events:
            for name, value in event.get("values", {}).items():
                metrics.append(Metric(_key(name), value, event["time_ms"], event["step"]))
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])
        for event in events:
            if "begin" in event:
                self._client.update_run(run_id, "RUNNING")
                known = self._client.get_run(run_id).data.params
                new: list[Param] = []
                changed: list[RunTag] = []  # values that a resumed run has changed
                for name, value in read_config(self._outbox.run_dir, event["begin"]).items():
                    key, text = _key(name), value[:LONGEST_VALUE]
                    if key not in known:
                        new.append(Param(key, text))
                    elif known[key] != text:
                        changed.append(RunTag(f"changed.{key}"[:LONGEST_KEY], text))
                for start in range(0, max(len(new), len(changed)), MOST_PARAMS):
                    part = slice(start, start + MOST_PARAMS)
                    self._client.log_batch(run_id, params=new[part], tags=changed[part])
            elif "end" in event:
                self._client.set_terminated(run_id, event["end"], event["time_ms"])
            for name in event.get("files", ()):  # those that are there and have changed since
                path = inside(self._outbox.run_dir, name)
                if path is None:
                    continue
                stat = path.stat()
                identity = [stat.st_mtime_ns, stat.st_size]
                if uploaded.get(name) != identity:
                    self._client.log_artifact(run_id, str(path), os.path.dirname(name) or None)
                    uploaded[name] = identity
                    self._outbox.save()

    def _open(self) -> str:
        """Return the id of the server's run with our token, which is made if there is none."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        token = self._outbox.state["token"]
        try:
            experiment_id = self._client.create_experiment(self._experiment)
        except MlflowException as error:
            known = self._client.get_experiment_by_name(self._experiment)
            if known is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment_id = known.experiment_id
        if runs := self._client.search_runs([experiment_id], f"tags.`paceline.run` = '{token}'"):
            run = runs[0]
        else:
            tags = {"paceline.run": token}
            run = self._client.create_run(experiment_id, tags=tags, run_name=self._name)
        place = f"{run.info.artifact_uri}".removeprefix("file://")
        # a file may name a database in this folder, but not what that leads to
        if names_no_server(self._uri) and not (os.path.isabs(place) and is_below(place)):
            what = f"keeps files in {place}, which is not below this folder"
            fix = "name another experiment, or the server of that database"
            raise ConfigError(370, f"sink.mlflow.experiment = {self._experiment}", what, fix)
        return run.info.run_id


def _key(name: str) -> str:
    return re.sub(r"[^\w. /-]", "_", name, flags=re.ASCII)[:LONGEST_KEY]
