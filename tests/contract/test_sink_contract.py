"""The promises of ``contracts.Sink``, kept by every implementation."""

import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.contracts.training import Report, RunContext
from framework.sink.console import ConsoleSink
from framework.sink.csv import CsvSink
from framework.sink.jsonl import JsonlSink
from framework.sink.mlflow import MLflowSink
from framework.sink.tensorboard import TensorBoardSink
from tests.fakes import span

KINDS = {
    "console": lambda run: ConsoleSink(run=run),
    "csv": lambda run: CsvSink(run=run),
    "jsonl": lambda run: JsonlSink(run=run),
    # port 9 refuses: the server of this run is lost
    "mlflow": lambda run: MLflowSink("http://127.0.0.1:9", "x", None, 2, True, 1, 9, run=run),
    "tensorboard": lambda run: TensorBoardSink(2, run=run),
}
SPANS = {"wait": span(0.1, 0.2), "forward": span(0.2)}
SAMPLE = {"index": torch.arange(3), "image": torch.zeros(3, 1, 4, 4, dtype=torch.uint8)}


def report(step, split="train", **change):
    return Report(
        **{
            "split": split,
            "step": step,
            "epoch": 1,
            "means": {"loss": 0.5},
            "records_per_s": 9.0,
            "spans": SPANS,
            **change,
        }
    )


@pytest.fixture(params=KINDS)
def make(request, tmp_path):
    """Return a function that makes a sink of one kind in one run directory."""

    def make(start_step=0, sample=SAMPLE):
        return KINDS[request.param](
            RunContext(tmp_path, total_steps=9, epochs=1, start_step=start_step, sample=sample)
        )

    return make


def test_reports_of_both_splits_are_taken_in_any_order(make):
    sink = make()
    for step, split in ((1, "val"), (1, "train"), (2, "train"), (2, "val")):
        sink.write(report(step, split))
    sink.close()


def test_a_sink_may_be_closed_without_a_report(make):
    make().close()


def test_closing_twice_is_closing_once(make):
    sink = make()
    sink.write(report(1))
    sink.close()
    sink.close()


def test_a_report_without_a_rate_spans_or_a_loss_of_its_own_is_taken(make):
    sink = make(sample={})
    sink.write(report(1, learning_rate=None, spans={}))
    sink.write(report(1, "val", means={}))
    sink.close()


def test_numbers_that_are_none_are_taken(make):
    sink = make()
    sink.write(report(1, means={"loss": float("nan")}, records_per_s=float("inf")))
    sink.close()


def test_everything_that_can_be_measured_is_taken(make):
    sink = make()
    usage = {
        "cpu_cores": 1.5,
        "workers_cpu_cores": 0.5,
        "peak_rss_bytes": 2e9,
        "peak_device_bytes": 3e9,
        "gpu_busy_share": 0.5,
    }
    more = {
        "stages_s": {"read": 0.1, "decode": 0.2},
        "ready": 1.5,
        "usage": usage,
        "epoch_left": 640,
        "left_s": 3723.0,
    }
    sink.write(report(1, **more, spans={**SPANS, "idle": span(0.05)}))
    sink.close()


def steps_in_jsonl(folder):
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def steps_in_csv(folder):
    lines = (folder / "curves" / "train.csv").read_text().splitlines()
    return [int(line.split(",")[0]) for line in lines[1:]]


def steps_in_outbox(folder):
    events = map(json.loads, (folder / "outbox" / "mlflow.jsonl").read_text().splitlines())
    return [event["step"] for event in events if "report" in event]


def steps_in_tensorboard(folder):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars("loss/train")]


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("csv", steps_in_csv),
        ("jsonl", steps_in_jsonl),
        ("mlflow", steps_in_outbox),
        ("tensorboard", steps_in_tensorboard),
    ],
)
def test_what_was_logged_after_the_start_of_a_resumed_run_is_void(tmp_path, kind, steps):
    for start_step, written in ((0, (1, 2, 3, 4)), (2, (3, 4, 5)), (4, (5, 6))):
        sink = KINDS[kind](RunContext(tmp_path, 9, 1, start_step=start_step))
        for step in written:
            sink.write(report(step))
        sink.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
