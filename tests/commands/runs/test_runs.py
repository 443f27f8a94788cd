import json

import pytest

from framework.cli.run_records import read_record, run_dirs
from framework.commands.runs.runs import chosen_runs, print_json, print_runs, send
from framework.errors import ConfigError, ResourceError
from framework.sink.base import Outbox
from framework.system.durable import locked
from tests.cli.command import is_one_error_line, paceline
from tests.run_folders import make_run
from tests.sink.tracking_server import TrackingServer


def listed_runs(folder):
    return list(map(read_record, run_dirs(folder)))


@pytest.fixture
def runs(tmp_path):
    """Return the runs a, b and c. The last of them failed before its first validation."""
    loader = {"loader": {"_target_": "framework.loader.stream.StreamLoader"}}
    make_run(tmp_path / "a", metrics={"accuracy": 0.9}, config={"optim": {"lr": 0.1}, **loader})
    make_run(tmp_path / "b", metrics={"accuracy": 0.5}, overrides=["optim.lr=0.2", "seed=1"])
    make_run(tmp_path / "c", code=6, config={"optim": {"lr": None}})
    return listed_runs(tmp_path)


def names(runs):
    return "".join(run.name for run in runs)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        *(("accuracy > 0.6", "a"), ("accuracy <= 0.6", "b"), ("not accuracy > 0.6", "bc")),
        *(("status == 'failed' or accuracy < 0.6", "bc"), ("code == 6", "c")),
        *(("name in ['a', 'c'] and steps < 8", "c"), ("loader == 'stream'", "a")),
        *(("time_s < 3", "ab"), ("seed == '1'", "b")),
    ],
)
def test_runs_are_chosen_by_facts_metrics_and_options(runs, where, chosen):
    assert names(chosen_runs(runs, where, None)) == chosen


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("acuracy > 1", "'acuracy' is not known of every run"),
        ("__import__('os')", "is no comparison"),
        ("1 == 1", "compares no field of the runs"),
    ],
)
def test_a_condition_is_parsed_and_never_evaluated(runs, where, what):
    with pytest.raises(ConfigError, match=r"C204.*where = ") as caught:
        chosen_runs(runs, where, None)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("sort", "order"),
    [("accuracy", "bac"), ("-accuracy", "abc"), ("status", "cab"), ("-name", "cba")],
)
def test_runs_are_sorted_and_unknown_values_come_last(runs, sort, order):
    assert names(chosen_runs(runs, None, sort)) == order


def test_an_unknown_key_to_sort_by_is_an_error_that_names_a_near_one(runs):
    with pytest.raises(ConfigError, match=r"C374.*did you mean 'accuracy'"):
        chosen_runs(runs, None, "acuracy")


def printed(capsys, folder):
    print_runs(listed_runs(folder), folder)
    return capsys.readouterr().out


def test_only_choices_that_differ_are_shown(tmp_path, capsys):
    make_run(tmp_path / "a", overrides=["seed=1", "epochs=3"])
    make_run(tmp_path / "b", overrides=["seed=2", "epochs=3"], code=6)
    text = printed(capsys, tmp_path)
    assert "seed" in text
    assert "epochs" not in text
    assert "failed (6)" in text
    assert "b: failed: why" in text


def test_long_choices_do_not_shorten_names_and_statuses(tmp_path, capsys):
    name = "2026-11-27/23-42-01.123456-1234{}"
    for number in range(2):
        words = [f"key{key}={'x' * 40}{number}" for key in range(6)]
        make_run(tmp_path / name.format(number), overrides=words, code=6)
    text = printed(capsys, tmp_path)
    assert all(name.format(number) in text for number in range(2))
    assert text.count("failed (6)") == 2
    assert "…" not in text


def test_json_has_everything_and_no_nan(tmp_path, capsys):
    make_run(tmp_path / "a", metrics={"loss": float("nan")}, overrides=["seed=1"])
    print_json(listed_runs(tmp_path))
    (run,) = json.loads(capsys.readouterr().out)
    known = ("finished", {"loss": None}, {"seed": "1"})
    assert (run["status"], run["best"], run["choices"]) == known


def test_a_folder_is_listed_sorted_and_chosen_from(tmp_path):
    make_run(tmp_path / "mine" / "a", metrics={"accuracy": 0.5})
    make_run(tmp_path / "mine" / "b", metrics={"accuracy": 0.9})
    make_run(tmp_path / "mine" / "c", code=6)
    done = paceline("runs", "mine", "where=status == 'finished'", "sort=-accuracy", "--json")
    assert done.code == 0
    assert [run["path"] for run in json.loads(done.out)] == ["mine/b", "mine/a"]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((("send",), "C371"), (("send", "a", "json=true"), "C372"), (("runs=[a]",), "C372")),
        *((("none",), "C373"), ((".", "sort=7x"), "C374"), ((".", "other"), "C100")),
        ((".", "action=delete"), "C101"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(tmp_path, words, number):
    make_run(tmp_path / "a")
    done = paceline("runs", *words)
    assert is_one_error_line(done, number)
    assert done.code == 2


# Sending

ADDRESS = "http://127.0.0.1:9"  # where nobody answers


@pytest.fixture
def address(monkeypatch):
    """Name a server, as whoever sends runs does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)


def waiting(path, uri=ADDRESS):
    """Write a killed run with two events for a server."""
    box = Outbox(path, "mlflow")
    box.state |= {"uri": uri, "experiment": "sent", "name": "mine", "checkpoints": True}
    box.append({"begin": "resolved.json", "step": 0, "time_ms": 1})
    report = {"report": "train", "step": 2, "time_ms": 2}
    box.append({**report, "values": {"loss/train": 0.5}})
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
    assert run.info.status == "FAILED"
    assert (run.data.metrics, run.data.params) == ({"loss/train": 0.5}, {"seed": "3"})
    assert [file.path for file in files] == ["checkpoints/last.pt"]


def test_a_server_that_is_lost_is_an_error_and_everything_is_kept(tmp_path, address):
    path = make_run(tmp_path / "run", code=137)
    waiting(path)
    for _ in range(2):
        with pytest.raises(ResourceError, match="R192"):
            send([path])
    assert Outbox(path, "mlflow").num_waiting() == 4  # its weights and its end were added once


@pytest.mark.parametrize("torn", ['{"report": "tr', '{"end": "FINISHED", "step": 2}'])
def test_a_run_whose_last_event_was_torn_ends_all_the_same(tmp_path, torn, address):
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
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = make_run(tmp_path / "run")
    waiting(path, uri)
    with pytest.raises(ConfigError, match="C379"):
        send([path])
