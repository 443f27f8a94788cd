"""What sinks share: numbers, pictures and measurements, and events for a tracking server."""

import errno
import json
import os
import threading
import time
from dataclasses import replace

import cv2
import pytest
import torch

from framework.contracts.loader import LoaderStats
from framework.contracts.span import RankReport, RankSpan
from framework.contracts.training import Report, RunContext
from framework.errors import DataError, ResourceError
from framework.sink import base
from framework.sink.tensorboard import TensorBoardSink
from framework.system import run_dir
from tests import fakes, saved_runs
from tests.small_disk import small_disk


def measured_report(split="train", **more):
    spans = {"wait": fakes.span(0.5, 0.25)}
    return Report(split, 1, 1, {"loss": 1.0}, 9.0, spans, 0.1, skipped=2, **more)


def test_what_is_measured_belongs_to_training():
    more = {"stages_s": {"read": 0.5}, "ready": 1.5, "usage": {"cpu_cores": 2.0}}
    values = base.values_of(measured_report(**more, epoch_left=64, left_s=9.5))
    assert values["span/wait_s"] == measured_report().spans["wait"].mean_s
    del values["span/wait_s"], values["span_p50/wait_s"], values["span_p90/wait_s"]
    assert [values.pop(name) for name in ("loss/train", "lr/train")] == [1.0, 0.1]
    assert values == {
        "records_per_s/train": 9.0,
        "stage/read_s": 0.5,
        "stage/ready": 1.5,
        "usage/cpu_cores": 2.0,
        "usage/skipped_steps": 2,
        "time_left/epoch_records": 64,
        "time_left/run_s": 9.5,
    }
    assert all(tag > "loss" for tag in values)  # TensorBoard unfolds only the first two groups
    clean = {"loss/val.clean": 1.0, "records_per_s/val.clean": 9.0}
    assert base.values_of(measured_report("val.clean")) == clean


def test_a_validation_shows_the_best_one_beside_it():
    best = {"loss": 0.25, "clean.loss": 0.125, "clean.accuracy": 1.0, "step": 3}
    assert base.values_of(measured_report("val", best=best))["loss/best"] == 0.25
    clean = base.values_of(measured_report("val.clean", best=best))
    assert {tag: clean[tag] for tag in clean if "best" in tag} == {"loss/best.clean": 0.125}


def test_each_group_of_parameters_has_a_curve_of_its_rate():
    report = measured_report(rates={"head": 0.1, "others": 0.01})
    values = base.values_of(report)
    assert [values[f"lr/{name}"] for name in ("head", "others")] == [0.1, 0.01]


def test_the_quickest_and_the_slowest_rank_have_curves():
    ranks = RankReport(4, {"wait": RankSpan(0.1, 0.2, 0.3, 2)})
    values = base.values_of(replace(measured_report(), ranks=ranks))
    assert values["span_ranks/wait_min_s"] == 0.1
    assert values["span_ranks/wait_max_s"] == 0.3


FIELDS = {
    "index": torch.arange(5),
    "image": torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 3, 4, 6) * 10,
    "../mask": torch.zeros(5, 1, 4, 6, dtype=torch.uint8),
    "many": torch.zeros(5, 5, 4, 6, dtype=torch.uint8),
    "float": torch.zeros(5, 3, 4, 6),
}


def test_only_fields_of_images_are_pictures():
    pictures = base.sample_pictures(FIELDS, 2)
    assert {name: len(images) for name, images in pictures.items()} == {"image": 2, "../mask": 2}


def test_a_picture_shows_the_records_row_by_row(tmp_path):
    base.write_picture(tmp_path / "image.png", FIELDS["image"])
    picture = cv2.imread(str(tmp_path / "image.png"))
    assert picture.shape == (2 * 4, 3 * 6, 3)
    corners = picture[::4, ::6, 0].flatten().tolist()
    assert corners == [0, 10, 20, 30, 40, 0]


def report(step, split="train"):
    return Report(split, step, 1, {"loss": 0.5}, 100.0)


def measured(sinks, *stats, usage=dict, start_step=0):
    """Return a sink whose loader gives these ``stats``, one after the other."""
    printed = iter(stats)
    return base.MeasuredSink(sinks, lambda: next(printed), usage, start_step)


def test_a_training_report_says_what_reading_took_per_step():
    inner = fakes.FakeSink()
    sink = measured([inner], LoaderStats({"read": 4.0, "decode": 8.0}, 1.5, 2), start_step=6)
    sink.write(report(10))
    assert inner.reports[0].stages_s == {"read": 1.0, "decode": 2.0}
    assert inner.reports[0].ready == 1.5
    assert (inner.reports[0].step, inner.reports[0].means) == (10, {"loss": 0.5})


def test_stages_are_summed_up_over_the_run():
    sink = measured(
        [], LoaderStats({"read": 4.0}, 1.0, 2), LoaderStats({"read": 1.0, "collate": 2.0}, 2.0, 2)
    )
    sink.write(report(3))
    sink.write(report(4))
    assert sink.stages_s == {"read": 5.0, "collate": 2.0}
    assert (sink.ready, sink.depth) == ((3 * 1.0 + 1 * 2.0) / 4, 2)


def test_a_validation_report_goes_by_as_it_is_and_asks_nobody():
    inner = fakes.FakeSink()
    measured([inner], usage=None).write(report(3, "val"))
    assert inner.reports == [report(3, "val")]


def test_usage_of_the_whole_run_is_means_over_time_and_peaks(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])
    first = {"cpu_cores": 4.0, "peak_rss_bytes": 7.0}
    printed = iter([first, {"cpu_cores": 1.0, "peak_rss_bytes": 9.0, "gpu_busy_share": 0.5}])
    sink = measured([], LoaderStats({}, None, 0), usage=lambda: next(printed))
    now[0] = 101.0
    sink.write(report(1))
    now[0] = 104.0
    means = {"cpu_cores": (1 * 4.0 + 3 * 1.0) / 4, "gpu_busy_share": 0.5}
    assert sink.usage() == {**means, "peak_rss_bytes": 9.0}


def test_shares_of_what_batches_held_are_reported_and_summed_up():
    inner = fakes.FakeSink()
    stats = [LoaderStats({}, None, 0, {"padding": counts}) for counts in ((1.0, 4.0), (0.0, 6.0))]
    sink = measured([inner], *stats, LoaderStats({}, None, 0, {"padding": (0.0, 0.0)}))
    for step in (1, 2, 3):
        sink.write(report(step))
    assert [made.content for made in inner.reports] == [{"padding": 0.25}, {"padding": 0.0}, {}]
    assert sink.content == {"padding": 0.1}


class Failing(fakes.FakeSink):
    """A sink whose every method fails."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, report=None):
        raise self.error

    flush = close = write


def unwritable():
    error = ResourceError(101, "a.csv", "cannot write", "free space")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("gone"), "gone"),
        (unwritable(), "No space left on device"),
    ],
)
def test_a_sink_that_cannot_write_is_said_once(error, why):
    warned = []
    sink = base.TolerantSink(Failing(error), warned.append)
    sink.write(report(1))
    sink.flush()
    sink.close()
    what = f"Failing cannot write: {why}"
    assert warned == [f"warning: {what}; training continues without it"]


def test_another_error_ends_the_run():
    with pytest.raises(DataError):
        base.TolerantSink(Failing(DataError(1, "a", "b", "c")), print).write(report(1))


def test_a_sink_that_works_gets_everything():
    inner = fakes.FakeSink()
    sink = base.TolerantSink(inner, print)
    sink.write(report(1))
    sink.flush()
    sink.close()
    assert (inner.reports, inner.flushed, inner.closed) == ([report(1)], [1], True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_may_close_after_a_full_disk(tmp_path):
    warned = []
    sink = base.TolerantSink(TensorBoardSink(0, run=RunContext(tmp_path, 10, 1)), warned.append)
    (events,) = (tmp_path / "tensorboard").glob("*.tfevents.[1-9]*")
    with small_disk(events.stat().st_size + 5):
        sink.write(report(1))
        end = time.monotonic() + 20.0
        while not warned and time.monotonic() < end:  # until the thread of TensorBoard fails
            sink.flush()
            time.sleep(0.01)
    sink.write(report(2))
    sink.flush()
    sink.close()
    assert warned == [
        "warning: TensorBoardSink cannot write: File too large; training continues without it"
    ]


SAMPLE = {"image": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}


class Notebook:
    """A tracker that keeps what it is sent, and fails as often as it is asked to."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.events = []
        self.closed = False

    def send(self, events):
        if self.failures:
            raise self.failures.pop(0)
        self.events += events

    def close(self):
        self.closed = True


def fill(folder, *steps):
    """Fill an outbox with a learned_report at each step."""
    box = base.Outbox(folder, "mlflow")
    for step in steps:
        box.append({"report": "train", "step": step})
    box.close()


def steps(box):
    """Return the steps of the next events, which are sent."""
    notebook = Notebook()
    box.send(notebook)
    return [event["step"] for event in notebook.events]


def test_events_wait_until_they_are_sent_also_for_the_next_process(tmp_path):
    fill(tmp_path, 1, 2)
    assert steps(base.Outbox(tmp_path, "mlflow")) == [1, 2]
    fill(tmp_path, 3)
    with pytest.raises(OSError, match="lost"):
        base.Outbox(tmp_path, "mlflow").send(Notebook(OSError("lost")))
    assert base.Outbox(tmp_path, "mlflow").num_waiting() == 1
    assert steps(base.Outbox(tmp_path, "mlflow")) == [3]
    assert steps(base.Outbox(tmp_path, "mlflow")) == []


def test_values_of_the_environment_wait_under_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "_names", {"TOKEN"})
    monkeypatch.setenv("TOKEN", "hunter2")
    box = base.Outbox(tmp_path, "mlflow")
    box.append({"end": "cannot reach hunter2@host"})
    box.close()
    assert json.loads(box.path.read_text()) == {"end": "cannot reach ${oc.env:TOKEN}@host"}


def test_a_batch_has_a_limit(tmp_path):
    fill(tmp_path, *range(base.MOST_EVENTS + 5))
    box = base.Outbox(tmp_path, "mlflow")
    assert [len(steps(box)), len(steps(box))] == [base.MOST_EVENTS, 5]


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "waiting"])
def test_a_resumed_run_drops_what_came_after_its_step(tmp_path, sent):
    fill(tmp_path, 2, 4, 6)
    if sent:
        steps(base.Outbox(tmp_path, "mlflow"))
    box = base.Outbox(tmp_path, "mlflow")
    box.drop_after(4)
    assert steps(box) == ([] if sent else [2, 4])
    box.append({"report": "train", "step": 5})
    assert steps(box) == [5]
    box.close()


@pytest.mark.parametrize("torn", [b'{"step": 4', b"\0\0\n", b"[1]\n", b"9" * 5000 + b"\n"])
def test_a_torn_line_costs_no_other(tmp_path, torn):
    fill(tmp_path, 2)
    with open(tmp_path / "outbox" / "mlflow.jsonl", "ab") as file:
        file.write(torn)
    fill(tmp_path, 6)
    assert steps(base.Outbox(tmp_path, "mlflow")) == [2, 6]


def test_a_disk_that_is_full_for_a_while_costs_no_event(tmp_path):
    fill(tmp_path, 2)
    box = base.Outbox(tmp_path, "mlflow")
    with small_disk(box.path.stat().st_size + 5), pytest.raises(OSError, match=r"large|space"):
        box.append({"report": "train", "step": 4})
    box.append({"report": "train", "step": 6})
    assert steps(box) == [2, 4, 6]
    box.close()


def learned_report(step):
    return Report("train", step, 1, {"loss": 1.0}, 9.0, learning_rate=0.5)


def open_sink(run, num_images=2, checkpoints=True, tracker=None, **settings):
    settings = {"num_images": num_images, "checkpoints": checkpoints, "every_s": 9.0, **settings}
    settings = {"close_s": 9.0, **settings}
    return base.TrackedSink(
        base.Outbox(run.run_dir, "notes"), tracker or Notebook(), **settings, run=run
    )


def events_in(folder):
    return [json.loads(line) for line in base.Outbox(folder, "notes").path.read_text().splitlines()]


def log(folder, *steps, start_step=0, checkpoints=True, error=None, ended=False):
    """Write the reports of a run of 4 steps until it ends or fails, and return its events."""
    run = RunContext(folder, 4, 1, start_step, SAMPLE, has_ended=lambda: ended)
    sink = open_sink(run, checkpoints=checkpoints)
    for step in steps:
        sink.write(learned_report(step))
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
    assert (first["report"], first["values"]["loss/train"]) == ("train", 1.0)
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
    saved_runs.write_signed(tmp_path / "resolved.json", text)
    assert base.read_config(tmp_path, "resolved.json") == values


def test_only_files_of_the_run_directory_are_sent(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "a.pt").write_text("weights")
    (tmp_path / "secret").write_text("key")
    os.symlink(tmp_path / "secret", run_dir / "link")
    assert base.inside(run_dir, "a.pt") == run_dir / "a.pt"
    for name in ("../secret", str(tmp_path / "secret"), "link", "missing", ".", "a\0b", 7):
        assert base.inside(run_dir, name) is None


def deliver(folder, tracker, *steps, wait_for=lambda printed: True, **settings):
    """Write reports of a run to a server, and return what is printed."""
    printed = []
    sink = open_sink(RunContext(folder, 4, 1, say=printed.append), tracker=tracker, **settings)
    for step in steps:
        sink.write(learned_report(step))
    while not wait_for(printed):
        time.sleep(0.001)
    sink.close()
    return printed


def test_everything_is_sent_before_it_closes(tmp_path):
    notebook = Notebook()
    assert deliver(tmp_path, notebook, *range(500)) == []
    assert [event["step"] for event in notebook.events if "report" in event] == list(range(500))
    assert (notebook.closed, "end" in notebook.events[-1]) == (True, True)


def test_a_server_that_comes_back_gets_everything_and_one_warning_was_said(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "FIRST_PAUSE_S", 0.0)
    notebook = Notebook(*[ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")] * 3)
    printed = deliver(tmp_path, notebook, 1, wait_for=lambda _: notebook.events)
    assert (len(printed), len(notebook.events)) == (1, len(events_in(tmp_path)))
    assert "notes cannot be reached (Connection refused); training continues" in printed[0]


def test_what_remains_is_counted_and_kept_with_the_command_that_sends_it(tmp_path):
    printed = deliver(tmp_path, Notebook(*[OSError(113, "No route to host")] * 9), 1)
    assert printed[-1] == (
        "notes: 5 events could not be sent (No route to host); they are kept, "
        f"send them with: paceline runs send {tmp_path}"
    )
    assert base.Outbox(tmp_path, "notes").num_waiting() == 5


def test_a_server_without_an_answer_is_not_waited_for(tmp_path):
    answer = threading.Event()

    class Silent(Notebook):
        def send(self, events):
            answer.wait()

    printed = deliver(tmp_path, Silent(), 1, close_s=0.1)
    answer.set()
    assert "5 events could not be sent (no answer within 0.1 s)" in printed[0]
