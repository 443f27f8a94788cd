import time

import pytest
import torch

from framework.contracts.training import Report, RunContext
from framework.errors import ConfigError
from framework.sink.base import Outbox
from framework.sink.mlflow import MLflowSink, MLflowTracker
from framework.system.run_dir import write_object
from tests.cli.command import losses, paceline
from tests.sink.tracking_server import TrackingServer

SAMPLE = {"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def server(folder):
    server = TrackingServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def mortal_server(folder, server):
    """Yield a second server over the same database, which a test may stop."""
    mortal = TrackingServer(folder)
    mortal.start()
    yield mortal
    mortal.stop()


@pytest.fixture
def run_dir(tmp_path):
    run_dir = tmp_path / "my run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "best.pt").write_bytes(b"weights")
    write_object(run_dir / "resolved.json", {"optim": {"lr": 0.1}, "epochs": 1})
    return run_dir


def report(step, loss=1.0, split="train", **means):
    return Report(split, step, 1, {"loss": loss, **means}, 1000.0, {}, 0.1)


def sink(server, run_dir, start_step=0, printed=None, uri=None):
    say = print if printed is None else printed.append
    run = RunContext(run_dir, 10, 1, start_step, SAMPLE, say)
    return MLflowSink(uri or server.uri, run_dir.parent.name, None, 4, True, 0.1, 60.0, run=run)


def log(server, run_dir, *reports, start_step=0, printed=None):
    logging = sink(server, run_dir, start_step, printed)
    for each in reports:
        logging.write(each)
    logging.close()


def runs(server, run_dir):
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name(run_dir.parent.name)
    return client, client.search_runs([experiment.experiment_id])


def curve(server, run_dir, name="loss/train"):
    client, (run,) = runs(server, run_dir)
    history = client.get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.value) for point in history)


@pytest.mark.slow
def test_a_run_has_configuration_curves_pictures_checkpoints_and_status(server, run_dir):
    log(server, run_dir, report(5), report(5, 0.5, "val", **{"top@5, %": 0.75}), report(10))
    client, (run,) = runs(server, run_dir)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "my run")
    assert run.data.params == {"optim.lr": "0.1", "epochs": "1"}
    assert curve(server, run_dir) == [(5, 1.0), (10, 1.0)]
    assert curve(server, run_dir, "top_5_ _/val") == [(5, 0.75)]
    names: set[str] = set()
    for folder in (None, "checkpoints", "pictures"):
        names |= {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    assert {"resolved.json", "checkpoints/best.pt", "pictures/sample-image.png"} <= names


@pytest.mark.slow
def test_a_server_that_ends_and_starts_again_gets_everything(mortal_server, run_dir):
    printed = []
    logging = sink(mortal_server, run_dir, printed=printed)
    logging.write(report(2))
    while Outbox(run_dir, "mlflow").num_waiting():
        time.sleep(0.05)
    mortal_server.stop()
    logging.write(report(4))
    logging.write(report(6))
    while not printed:
        time.sleep(0.05)
    mortal_server.start()
    logging.write(report(10))
    logging.close()
    assert curve(mortal_server, run_dir) == [(2, 1.0), (4, 1.0), (6, 1.0), (10, 1.0)]
    assert len(printed) == 1
    assert "training continues" in printed[0]


@pytest.mark.slow
@pytest.mark.parametrize("last", [4, 6], ids=["nothing ahead", "a report ahead"])
def test_a_resumed_run_continues_its_run_also_if_the_server_is_ahead(server, run_dir, last):
    log(server, run_dir, report(2), report(4), *([report(6)] if last == 6 else []))
    (before,) = runs(server, run_dir)[1]
    write_object(run_dir / "resolved.1.json", {"optim": {"lr": 0.2}, "epochs": 1})
    log(server, run_dir, report(6, 0.5), report(10), start_step=4)
    (after,) = runs(server, run_dir)[1]
    assert after.info.run_id == before.info.run_id
    ahead = [(6, 1.0)] if last == 6 else []
    assert curve(server, run_dir) == [(2, 1.0), (4, 1.0), (6, 0.5), *ahead, (10, 1.0)]
    assert (before.info.status, after.info.status) == ("KILLED", "FINISHED")
    assert after.data.tags["changed.optim.lr"] == "0.2"


@pytest.mark.slow
def test_a_run_of_a_lost_server_trains_and_is_sent_by_the_command_that_it_names(
    mortal_server, tmp_path
):
    mortal_server.stop()
    words = ("sink=[jsonl,mlflow]", f"sink.mlflow.uri={mortal_server.uri}")
    trained = paceline("train", "max_steps=4", "report_every=2", "hydra.run.dir=mine", *words)
    assert trained.code == 0, trained.err
    (line,) = (line for line in trained.err.splitlines() if line.startswith("mlflow: "))
    variable, _, *command = line.rpartition("send them with: ")[2].split()
    mortal_server.start()
    sent = paceline(*command, **dict([variable.split("=", 1)]))
    assert sent.code == 0, sent.err
    from mlflow import MlflowClient

    client = MlflowClient(mortal_server.uri)
    experiment = client.get_experiment_by_name("paceline")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss/train")
    assert [point.value for point in history] == losses(tmp_path / "mine")
    assert run.info.status == "FINISHED"


def test_a_run_needs_the_address_of_a_server(run_dir, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=r"C370.*give sink.mlflow.uri"):
        MLflowTracker(Outbox(run_dir, "mlflow"), None, "paceline", "name")


def test_an_address_that_mlflow_cannot_use_is_named_without_its_password(run_dir):
    words = r"C370.* = foo://x: names no server or database .*'foo://x'.*; give .* sqlite:///FILE"
    with pytest.raises(ConfigError, match=words) as failed:
        MLflowTracker(Outbox(run_dir, "mlflow"), "foo://me:secret@x", "paceline", "name")
    assert "secret" not in str(failed.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy
def test_a_database_here_leads_no_files_elsewhere(run_dir, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(run_dir)
    uri = "sqlite:///x.db"
    MlflowClient(uri).create_experiment("away", artifact_location="http://127.0.0.1:9")
    MLflowTracker(Outbox(run_dir, "mlflow"), uri, "here", "name").send([{}])
    with pytest.raises(ConfigError, match=r"C370.*away: keeps files in http://127"):
        MLflowTracker(Outbox(run_dir, "mlflow"), uri, "away", "name").send([{}])


def test_no_file_holds_the_password_of_a_server(run_dir):
    MLflowTracker(Outbox(run_dir, "mlflow"), "http://me:secret@127.0.0.1:9", "paceline", "name")
    text = (run_dir / "outbox" / "mlflow.json").read_text()
    assert "secret" not in text
    assert '"http://127.0.0.1:9"' in text


def test_another_server_gets_all_events(run_dir):
    for port, sent in ((9, 1), (9, 0), (10, 1)):
        box = Outbox(run_dir, "mlflow")
        MLflowTracker(box, f"http://127.0.0.1:{port}", "paceline", "name")
        if port == 9 and sent:
            box.append({"step": 1})
            box.close()
        assert box.num_waiting() == sent
        box.sent = box.path.stat().st_size
        box.save()
