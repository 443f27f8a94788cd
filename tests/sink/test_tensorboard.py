from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.contracts.training import Report, RunContext
from framework.sink.report_values import array_picture
from framework.sink.tensorboard import TensorBoardSink
from tests.fakes import span

SPANS = {"wait": span(0.125, 0.25), "copy": span(0.25), "forward": span(0.5), "idle": span(2.0)}
SAMPLE = {
    "index": torch.arange(4),
    "image": torch.full((4, 3, 8, 8), 200, dtype=torch.uint8),
    "mask": torch.zeros(4, 1, 8, 8, dtype=torch.uint8),
    "label": torch.arange(4),
    "many": torch.zeros(4, 5, 8, 8, dtype=torch.uint8),
    "float": torch.zeros(4, 3, 8, 8),
}


def train(step, loss=0.5):
    return Report("train", step, 1, {"loss": loss, "accuracy": 0.75}, 1000.0, SPANS, 0.0625)


def val(step):
    return Report(
        "val", step, 1, {"loss": 0.25, "accuracy": 1.0}, 2000.0, {"wait": span(9.0)}, 0.0625
    )


def write(folder, *reports, num_images=2, start_step=0):
    sink = TensorBoardSink(
        num_images,
        run=RunContext(folder, total_steps=10, epochs=1, start_step=start_step, sample=SAMPLE),
    )
    for report in reports:
        sink.write(report)
    sink.close()


def read(folder):
    """Return the events as TensorBoard itself reads them from the files."""
    events = EventAccumulator(
        str(folder / "tensorboard"), size_guidance={"images": 0, "scalars": 0}
    )
    events.Reload()
    return events


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_every_number_of_a_training_report_has_its_tag(tmp_path):
    write(tmp_path, train(3))
    events = read(tmp_path)
    expected = {
        "loss/train": 0.5,
        "accuracy/train": 0.75,
        "lr/train": 0.0625,
        "records_per_s/train": 1000.0,
    }
    for name, result in SPANS.items():
        expected |= {
            f"span/{name}_s": result.mean_s,
            f"span_p50/{name}_s": result.p50_s,
            f"span_p90/{name}_s": result.p90_s,
        }
    assert {tag: scalars(events, tag) for tag in events.Tags()["scalars"]} == {
        tag: [(3, pytest.approx(value))] for tag, value in expected.items()
    }


def test_what_loader_and_machine_said_has_its_tags(tmp_path):
    more = {
        "stages_s": {"read": 0.5},
        "ready": 1.5,
        "usage": {"cpu_cores": 2.0},
        "epoch_left": 64,
        "left_s": 9.5,
    }
    write(tmp_path, replace(train(3), **more))
    events = read(tmp_path)
    tags = (
        "stage/read_s",
        "stage/ready",
        "usage/cpu_cores",
        "time_left/epoch_records",
        "time_left/run_s",
    )
    assert [scalars(events, tag) for tag in tags] == [
        [(3, value)] for value in (0.5, 1.5, 2.0, 64.0, 9.5)
    ]
    assert all(tag > "loss" for tag in tags)  # the page unfolds the first two groups of tags only


def test_a_validation_report_has_its_metrics_and_speed(tmp_path):
    write(tmp_path, val(5))
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["accuracy/val", "loss/val", "records_per_s/val"]
    assert scalars(events, "accuracy/val") == [(5, 1.0)]


def test_fields_that_are_images_are_shown_once(tmp_path):
    write(tmp_path, train(1), train(2))
    events = read(tmp_path)
    shown = {"/".join(tag.split("/")[:2]) for tag in events.Tags()["images"]}
    assert shown == {"sample/image", "sample/mask"}
    assert all(len(events.Images(tag)) == 1 for tag in events.Tags()["images"])


def test_two_files_of_a_run_are_never_of_the_same_second(tmp_path):
    for step in (0, 2, 4):
        write(tmp_path, train(step + 2), start_step=step, num_images=0)
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert len({name.split(".")[3] for name in names}) == 3


def test_a_resumed_run_voids_what_was_logged_after_its_start(tmp_path):
    write(tmp_path, train(2), train(4), train(6))
    write(tmp_path, train(6, loss=9.0), train(8, loss=9.0), start_step=4)
    assert scalars(read(tmp_path), "loss/train") == [(2, 0.5), (4, 0.5), (6, 9.0), (8, 9.0)]


@pytest.mark.parametrize("start_step", [1, 4])
def test_a_resumed_run_does_not_show_the_images_again(tmp_path, start_step):
    write(tmp_path, train(1), train(4))
    write(tmp_path, train(6), start_step=start_step)
    assert len(read(tmp_path).Images("sample/image")) == 1


def test_an_array_is_a_picture(tmp_path):
    arrays = {"confusion": torch.tensor([[90.0, 10.0], [0.0, 1.0]]), "cube": torch.ones(2, 2, 2)}
    write(tmp_path, replace(val(3), split="val.clean", arrays=arrays))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = [tag for tag in events.Tags()["images"] if "sample" not in tag]
    assert tags == ["confusion/val.clean"]
    assert "loss/val.clean" in events.Tags()["scalars"]
    shades = array_picture(arrays["confusion"])
    assert shades.shape == (1, 256, 256)
    corners = shades[0, ::255, ::255].tolist()
    assert (corners[0][0], corners[1], corners[0][1] > 200) == (0, [255, 0], True)
