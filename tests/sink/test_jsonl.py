import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.contracts.span import LateRank, RankReport, RankSpan
from framework.contracts.training import Report, RunContext
from framework.sink.jsonl import JsonlSink
from tests.fakes import span

SPANS = {"wait": span(0.1, 0.3), "copy": span(1e-9), "forward": span(1 / 3), "report": span(0.25)}
plain = st.floats(allow_nan=False, allow_infinity=False)


def report(step, loss=1.0, split="train", **more):
    return Report(split, step, 1, {"loss": loss, "accuracy": 0.5}, 1000.0, SPANS, 0.1, **more)


def write(folder, *reports, start_step=0):
    """Write these reports as a run does, or as the rest of a run does."""
    sink = JsonlSink(run=RunContext(folder, total_steps=10, epochs=1, start_step=start_step))
    for each in reports:
        sink.write(each)
    sink.close()


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_report_is_a_line_with_all_its_numbers(tmp_path):
    write(tmp_path, report(3))
    means = {"loss": 1.0, "accuracy": 0.5}
    known = {"step": 3, "epoch": 1, "split": "train", **means, "lr": 0.1, "records_per_s": 1000.0}
    known |= {"epoch_left": None, "left_s": None}
    for name, of in SPANS.items():
        quantiles = {f"{name}_p50_s": of.quantile_s(0.5), f"{name}_p90_s": of.quantile_s(0.9)}
        known |= {f"{name}_s": of.mean_s, **quantiles}
    assert lines(tmp_path) == [known]


def test_what_all_ranks_measured_stands_in_the_line(tmp_path):
    late = LateRank(3, "backward", 0.71, 0.012, 0.09)
    ranks = RankReport(4, {"wait": RankSpan(0.1, 0.2, 0.3, 2)}, late)
    write(tmp_path, report(3, ranks=ranks), report(4, ranks=RankReport(2)))
    first, second = (line["ranks"] for line in lines(tmp_path))
    assert first["num"] == 4
    assert first["spans"]["wait"] == {"min_s": 0.1, "median_s": 0.2, "max_s": 0.3, "rank": 2}
    assert LateRank(**first["late"]) == late
    assert second == {"num": 2, "spans": {}, "late": None}


def test_what_loader_and_machine_said_stands_in_the_line(tmp_path):
    more = {"stages_s": {"read": 0.5}, "ready": 1.5, "usage": {"cpu_cores": 2.0}}
    more |= {"epoch_left": 64, "left_s": 9.5}
    write(tmp_path, report(3, **more))
    assert {name: lines(tmp_path)[0][name] for name in more} == more


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(loss=plain)
def test_every_float64_comes_back_as_it_was(tmp_path, loss):
    write(tmp_path, report(1, loss))
    (result,) = lines(tmp_path)
    assert (result["loss"], math.copysign(1, result["loss"])) == (loss, math.copysign(1, loss))


@pytest.mark.parametrize("torn", ['{"step": 4, "epo', "\0\0\0\0"], ids=["part", "zeros"])
def test_a_torn_last_line_is_dropped(tmp_path, torn):
    write(tmp_path, report(2))
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(torn)
    write(tmp_path, report(4), start_step=4)
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]


def test_arrays_are_nested_lists_and_counts_are_whole_numbers(tmp_path):
    arrays = {"confusion": torch.tensor([[3.0, 1.0], [0.0, 2.0]]), "recall": torch.tensor([0.5, 1])}
    write(tmp_path, report(1, split="val.clean", arrays=arrays))
    line = lines(tmp_path)[0]
    assert line["arrays"] == {"confusion": [[3, 1], [0, 2]], "recall": [0.5, 1.0]}
    assert isinstance(line["arrays"]["confusion"][0][0], int)
    assert line["split"] == "val.clean"
