import json

import pytest
import torch

from framework.contracts.training import Report, RunContext
from framework.sink.delivery import Delivery
from framework.sink.outbox import Outbox
from framework.sink.run_events import RunEvents
from tests.sink.test_delivery import Notebook

SAMPLE = {"image": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}


def report(step):
    return Report("train", step, 1, {"loss": 1.0}, 9.0, learning_rate=0.5)


def log(folder, *steps, start_step=0, checkpoints=True, error=None):
    """The events that a run of 4 steps writes, until it ends or fails."""
    run = RunContext(folder, 4, 1, start_step, SAMPLE)
    box = Outbox(folder, "notes", start_step)
    delivery = Delivery(box, Notebook(), name="notes", every_s=9.0, close_s=9.0, say=print)
    events = RunEvents(run, box, delivery, num_images=2, checkpoints=checkpoints)
    for step in steps:
        events.write(report(step))
    try:
        if error:
            raise error
    except ValueError:
        events.close()
    events.close()
    return [json.loads(line) for line in box.path.read_text().splitlines()]


def test_a_run_tells_its_configuration_pictures_reports_weights_and_end(tmp_path):
    (tmp_path / "resolved.json").write_text("{}")
    begin, files, first, _, weights, end = log(tmp_path, 2, 4)
    assert begin["begin"] == "resolved.json"
    assert files["files"] == ["resolved.json", "pictures/sample-image.png"]
    assert (first["report"], first["learned"]["loss/train"]) == ("train", 1.0)
    assert weights["files"] == ["checkpoints/best.pt", "checkpoints/last.pt"]
    assert (end["end"], end["step"]) == ("FINISHED", 4)


def test_a_metric_that_is_an_array_becomes_a_picture(tmp_path):
    run = RunContext(tmp_path, 4, 1)
    box = Outbox(tmp_path, "notes", 0)
    delivery = Delivery(box, Notebook(), name="notes", every_s=9.0, close_s=9.0, say=print)
    events = RunEvents(run, box, delivery, num_images=0, checkpoints=False)
    arrays = {"confusion": torch.eye(3), "cube": torch.zeros(2, 2, 2)}
    events.write(Report("val.clean", 2, 1, {"loss": 1.0}, 9.0, arrays=arrays))
    events.close()
    assert '"files": ["pictures/confusion-val.clean.png"]' in box.path.read_text()
    assert (tmp_path / "pictures" / "confusion-val.clean.png").exists()


@pytest.mark.parametrize(
    ("steps", "error", "status"),
    [((2,), None, "KILLED"), ((2,), ValueError(), "FAILED"), ((4,), None, "FINISHED")],
)
def test_the_end_says_how_the_run_went(tmp_path, steps, error, status):
    assert log(tmp_path, *steps, error=error)[-1]["end"] == status


def test_weights_stay_here_if_that_is_wanted(tmp_path):
    assert [next(iter(event)) for event in log(tmp_path, 4, checkpoints=False)] == [
        "begin",
        "files",
        "report",
        "end",
    ]


def test_a_resumed_run_draws_no_pictures_again(tmp_path):
    log(tmp_path, 2)
    assert log(tmp_path, 4, start_step=2)[-4]["files"] == []
