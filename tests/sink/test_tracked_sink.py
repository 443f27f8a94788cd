import json
import os

import cv2
import pytest
import torch

from framework.contracts.training import Report, RunContext
from framework.sink.outbox import Outbox
from framework.sink.tracked_sink import TrackedSink, inside, read_config
from tests.saved_runs import write_signed
from tests.sink.test_outbox import Notebook

SAMPLE = {"image": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}


def report(step):
    return Report("train", step, 1, {"loss": 1.0}, 9.0, learning_rate=0.5)


def open_sink(run, num_images=2, checkpoints=True):
    settings = {"num_images": num_images, "checkpoints": checkpoints, "every_s": 9.0}
    return TrackedSink("notes", Notebook(), **settings, close_s=9.0, run=run)


def events_in(folder):
    return [json.loads(line) for line in Outbox(folder, "notes").path.read_text().splitlines()]


def log(folder, *steps, start_step=0, checkpoints=True, error=None, ended=False):
    """Write the reports of a run of 4 steps until it ends or fails, and return its events."""
    run = RunContext(folder, 4, 1, start_step, SAMPLE, has_ended=lambda: ended)
    sink = open_sink(run, checkpoints=checkpoints)
    for step in steps:
        sink.write(report(step))
    try:
        if error:
            raise error
    except ValueError:
        sink.close()
    sink.close()
    return events_in(folder)


def test_a_run_tells_its_configuration_pictures_reports_weights_and_end(tmp_path):
    (tmp_path / "resolved.json").write_text("{}")
    begin, files, first, _, weights, end = log(tmp_path, 2, 4)
    assert begin["begin"] == "resolved.json"
    assert files["files"] == ["resolved.json", "pictures/sample-image.png"]
    assert (first["report"], first["learned"]["loss/train"]) == ("train", 1.0)
    assert weights["files"] == ["checkpoints/best.pt", "checkpoints/last.pt"]
    assert (end["end"], end["step"]) == ("FINISHED", 4)


def test_each_validation_keeps_a_picture_of_its_arrays(tmp_path):
    sink = open_sink(RunContext(tmp_path, 4, 1), num_images=0, checkpoints=False)
    for step, array in ((2, torch.eye(2)), (4, torch.ones(2, 2))):
        arrays = {"confusion": array, "cube": torch.zeros(2, 2, 2)}
        sink.write(Report("val.clean", step, 1, {"loss": 1.0}, 9.0, arrays=arrays))
    sink.close()
    files = [name for event in events_in(tmp_path) for name in event.get("files", [])]
    assert files == [f"pictures/step-0000000{step}/confusion-val.clean.png" for step in (2, 4)]
    darkness = [(255 - cv2.imread(str(tmp_path / name))).mean() for name in files]
    assert darkness == [127.5, 255.0]


@pytest.mark.parametrize(
    ("steps", "error", "status"),
    [((2,), None, "KILLED"), ((2,), ValueError(), "FAILED"), ((4,), None, "FINISHED")],
)
def test_the_end_says_how_the_run_went(tmp_path, steps, error, status):
    assert log(tmp_path, *steps, error=error)[-1]["end"] == status


def test_weights_stay_here_if_that_is_wanted(tmp_path):
    kinds = [next(iter(event)) for event in log(tmp_path, 4, checkpoints=False)]
    assert kinds == ["begin", "files", "report", "end"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b": 1, "c": [1, "x"]}, "d": null}', {"a.b": "1", "a.c": '[1, "x"]', "d": "null"}),
        ("{", {}),
        ("[" * 100_000, {}),
    ],
)
def test_a_configuration_is_read_by_dotted_names(tmp_path, text, values):
    write_signed(tmp_path / "resolved.json", text)
    assert read_config(tmp_path / "resolved.json") == values


def test_only_files_of_the_run_directory_are_sent(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "a.pt").write_text("weights")
    (tmp_path / "secret").write_text("key")
    os.symlink(tmp_path / "secret", run_dir / "link")
    assert inside(run_dir, "a.pt") == run_dir / "a.pt"
    for name in ("../secret", str(tmp_path / "secret"), "link", "missing", ".", "a\0b", 7):
        assert inside(run_dir, name) is None
