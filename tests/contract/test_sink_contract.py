import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from framework.contracts.training import Report, RunContext
from framework.sink import console, csv, jsonl
from framework.sink.mlflow import MLflowSink
from framework.sink.tensorboard import TensorBoardSink
from tests.fakes import span

KINDS = {
    "console": lambda run: console.ConsoleSink(run=run),
    "csv": lambda run: csv.CsvSink(run=run),
    "jsonl": lambda run: jsonl.JsonlSink(run=run),
    # port 9 refuses: the server of this run is lost
    "mlflow": lambda run: MLflowSink("http://127.0.0.1:9", "x", None, 2, True, 1, 9, run=run),
    "tensorboard": lambda run: TensorBoardSink(2, run=run),
}
SPANS = {"wait": span(0.1, 0.2), "forward": span(0.2)}
SAMPLE = {"index": torch.arange(3), "image": torch.zeros(3, 1, 4, 4, dtype=torch.uint8)}
USAGE = {"cpu_cores": 1.5, "workers_cpu_cores": 0.5, "gpu_busy_share": 0.5}
USAGE |= {"peak_rss_bytes": 2e9, "peak_device_bytes": 3e9}
EVERYTHING = {"stages_s": {"read": 0.1, "decode": 0.2}, "ready": 1.5, "usage": USAGE}
EVERYTHING |= {"epoch_left": 640, "left_s": 3723.0, "spans": {**SPANS, "idle": span(0.05)}}


def report(step=1, split="train", **changes):
    given = {"epoch": 1, "means": {"loss": 0.5}, "records_per_s": 9.0, "spans": SPANS, **changes}
    return Report(split=split, step=step, **given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "reports",
    [
        pytest.param([], id="none"),
        pytest.param(
            [report(1, "val"), report(1), report(2), report(2, "val")], id="both splits, any order"
        ),
        pytest.param([report(learning_rate=None, spans={})], id="no rate, no spans"),
        pytest.param([report(split="val", means={})], id="no loss"),
        pytest.param(
            [report(means={"loss": float("nan")}, records_per_s=float("inf"))], id="no numbers"
        ),
        pytest.param([report(**EVERYTHING)], id="everything that can be measured"),
    ],
)
def test_reports_of_any_kind_are_taken_and_closing_twice_is_closing_once(tmp_path, kind, reports):
    sink = KINDS[kind](RunContext(tmp_path, 9, 1, sample=SAMPLE if len(reports) > 1 else {}))
    for each in reports:
        sink.write(each)
    sink.close()
    sink.close()


def steps_in_jsonl(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


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
        *(("csv", steps_in_csv), ("jsonl", steps_in_jsonl), ("mlflow", steps_in_outbox)),
        ("tensorboard", steps_in_tensorboard),
    ],
)
def test_reports_after_the_start_of_a_resumed_run_are_void(tmp_path, kind, steps):
    for start_step, written in ((0, (1, 2, 3, 4)), (2, (3, 4, 5)), (4, (5, 6))):
        sink = KINDS[kind](RunContext(tmp_path, 9, 1, start_step=start_step))
        for step in written:
            sink.write(report(step))
        sink.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
