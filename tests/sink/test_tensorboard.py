from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from framework.contracts.training import Report, RunContext
from framework.sink.base import array_pictures, values_of
from framework.sink.tensorboard import TensorBoardSink
from framework.system.run_dir import write_object
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
    means = {"loss": 0.25, "accuracy": 1.0}
    return Report("val", step, 1, means, 2000.0, {"wait": span(9.0)}, 0.0625)


def write(folder, *reports, num_images=2, start_step=0):
    sink = TensorBoardSink(num_images, run=RunContext(folder, 10, 1, start_step, SAMPLE))
    for report in reports:
        sink.write(report)
    sink.close()


def read(folder):
    """Return the events as TensorBoard itself reads them from the files."""
    every = {"images": 0, "scalars": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=every).Reload()


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.parametrize("report", [train(3), val(3)], ids=["train", "val"])
def test_every_number_of_a_report_has_its_tag(tmp_path, report):
    write(tmp_path, report)
    events = read(tmp_path)
    expected = values_of(report)
    assert {tag: scalars(events, tag) for tag in events.Tags()["scalars"]} == {
        tag: [(3, pytest.approx(value))] for tag, value in expected.items()
    }


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
    assert len({name.split(".")[3] for name in names}) == 3 + 1  # and the hyperparameters


def test_a_resumed_run_does_not_show_the_images_again(tmp_path):
    write(tmp_path, train(1), train(4))
    write(tmp_path, train(6), start_step=4)
    assert len(read(tmp_path).Images("sample/image")) == 1


def hparams(folder):
    """Return hyperparameters and metrics of each run below, as TensorBoard's tab shows them."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(folder))))
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=statuses)
    return {
        group.name: (
            {n: value.number_value or value.string_value for n, value in group.hparams.items()},
            {each.name.tag: each.value for each in group.metric_values},
        )
        for group in Handler(RequestContext(), context, "", request).run().session_groups
    }


def test_hyperparameters_and_best_values_of_each_run_are_in_one_tab(tmp_path):
    optim = {"lr": 0.5, "betas": [0.9, 0.99], "fused": True, "clip": None, "name": "adam"}
    for name, more in (("a", {}), ("b", {"seed": 7})):
        run_dir = tmp_path / name
        run_dir.mkdir()
        write_object(run_dir / "resolved.json", {"optim": optim, **more})
        best = {"loss": 0.25, "accuracy": 0.875, "step": 1}
        write(run_dir, train(2), replace(val(2), best=best))
    plain = {"optim.lr": 0.5, "optim.betas": "[0.9, 0.99]", "optim.fused": "true"}
    shown = hparams(tmp_path)
    values, metrics = shown["a/tensorboard"]
    assert values == {**plain, "optim.name": "adam"}
    assert shown["b/tensorboard"][0] == {**values, "seed": 7}
    assert (metrics["accuracy/best"], metrics["loss/best"]) == (0.875, 0.25)


def test_a_resumed_run_shows_the_hyperparameters_that_it_has_now(tmp_path):
    write_object(tmp_path / "resolved.json", {"lr": 0.5})
    write(tmp_path, train(1), train(4))
    write_object(tmp_path / "resolved.1.json", {"lr": 0.25})
    write(tmp_path, train(6), start_step=4)
    ((values, metrics),) = hparams(tmp_path).values()
    assert (values, metrics["loss/train"]) == ({"lr": 0.25}, 0.5)


def test_an_array_is_a_picture(tmp_path):
    arrays = {"confusion": torch.tensor([[90.0, 10.0], [0.0, 1.0]]), "cube": torch.ones(2, 2, 2)}
    write(tmp_path, replace(val(3), split="val.clean", arrays=arrays))
    events = read(tmp_path)
    tags = [tag for tag in events.Tags()["images"] if "sample" not in tag]
    assert tags == ["confusion/val.clean"]
    assert "loss/val.clean" in events.Tags()["scalars"]
    (shades,) = array_pictures(arrays).values()
    assert shades.shape == (1, 1, 256, 256)
    corners = shades[0, 0, ::255, ::255].tolist()
    assert (corners[0][0], corners[1], corners[0][1] > 200) == (0, [255, 0], True)
