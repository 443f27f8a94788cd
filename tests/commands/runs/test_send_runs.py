import json

import pytest

from framework.commands.runs.send_runs import send
from framework.errors import ConfigError, ResourceError
from framework.sink.base import Outbox
from framework.system.durable import locked
from tests.run_folders import make_run
from tests.sink.tracking_server import TrackingServer

ADDRESS = "http://127.0.0.1:9"  # where nobody answers


@pytest.fixture(autouse=True)
def address(monkeypatch):
    """Name a server, as whoever sends runs does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)


def waiting(path, uri=ADDRESS):
    """Write a killed run with two events for a server."""
    box = Outbox(path, "mlflow")
    box.state |= {"uri": uri, "experiment": "sent", "name": "mine", "checkpoints": True}
    box.append({"begin": "resolved.json", "step": 0, "time_ms": 1})
    report = {"report": "train", "step": 2, "time_ms": 2}
    box.append({**report, "learned": {"loss/train": 0.5}, "measured": {}})
    box.save()
    box.close()


@pytest.mark.slow
def test_a_killed_run_is_sent_with_its_weights_and_its_end(tmp_path, capsys, monkeypatch):
    from mlflow import MlflowClient

    server = TrackingServer(tmp_path)
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    path = make_run(tmp_path / "run", code=137, config={"seed": 3})
    waiting(path)
    send([path])
    send([path])
    client = MlflowClient(server.uri)
    (run,) = client.search_runs([client.get_experiment_by_name("sent").experiment_id])
    files = client.list_artifacts(run.info.run_id, "checkpoints")
    server.stop()
    assert capsys.readouterr().out == (
        f"{path}: 4 events sent to mlflow\n{path}: 0 events sent to mlflow\n"
    )
    assert (run.info.status, run.data.metrics, run.data.params) == (
        "FAILED",
        {"loss/train": 0.5},
        {"seed": "3"},
    )
    assert [file.path for file in files] == ["checkpoints/last.pt"]


def test_a_server_that_is_lost_is_an_error_and_everything_is_kept(tmp_path):
    path = make_run(tmp_path / "run", code=137)
    waiting(path)
    for _ in range(2):
        with pytest.raises(ResourceError, match="R192"):
            send([path])
    assert Outbox(path, "mlflow").num_waiting() == 4  # its weights and its end were added once


@pytest.mark.parametrize("torn", ['{"report": "tr', '{"end": "FINISHED", "step": 2}'])
def test_a_run_whose_last_event_was_torn_ends_all_the_same(tmp_path, torn):
    path = make_run(tmp_path / "run", code=137)
    waiting(path)
    with open(path / "outbox" / "mlflow.jsonl", "a") as file:
        file.write(torn)
    for _ in range(2):
        with pytest.raises(ResourceError, match="R192"):
            send([path])
    last = Outbox(path, "mlflow").path.read_text().splitlines()[-1]
    assert json.loads(last)["end"] == "FAILED"


def test_a_running_run_sends_its_events_itself(tmp_path):
    path = make_run(tmp_path / "run")
    with (
        locked(path / "run.lock", lambda owner: None),
        pytest.raises(ResourceError, match=r"R190.*sends its events itself"),
    ):
        send([path])


def test_a_run_without_a_tracking_server_says_so(tmp_path, capsys):
    path = make_run(tmp_path / "run")
    send([path])
    assert capsys.readouterr().out == f"{path}: no tracking server was chosen\n"


@pytest.mark.parametrize("uri", [ADDRESS, "file:///tmp/x", "databricks", "", "sqlite:////x.db"])
def test_a_run_directory_does_not_choose_the_server(tmp_path, uri, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    path = make_run(tmp_path / "run")
    waiting(path, uri)
    with pytest.raises(ConfigError, match="C379"):
        send([path])
