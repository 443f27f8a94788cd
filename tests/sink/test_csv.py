import csv
from dataclasses import replace

import pytest

from framework.contracts.training import Report, RunContext
from framework.errors import ResourceError
from framework.sink.csv import CsvSink
from tests.small_disk import small_disk


def report(step, split="train", rate=0.5, **means):
    return Report(split, step, 1, means or {"loss": 1.0}, 1000.0, {}, rate)


def write(folder, *reports, start_step=0):
    sink = CsvSink(run=RunContext(folder, 10, 1, start_step))
    for each in reports:
        sink.write(each)
    sink.flush()
    sink.close()


def rows(folder, split="train"):
    with open(folder / "curves" / f"{split}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_is_a_row_of_its_split(tmp_path):
    write(tmp_path, report(2, loss=0.1 + 0.2), report(2, "val.clean", None, accuracy=0.5))
    train = {"step": "2", "epoch": "1", "loss": repr(0.1 + 0.2), "lr": "0.5"}
    assert rows(tmp_path) == [{**train, "records_per_s": "1000.0"}]
    val = {"step": "2", "epoch": "1", "accuracy": "0.5", "lr": "", "records_per_s": "1000.0"}
    assert rows(tmp_path, "val.clean") == [val]


def test_a_metric_that_appears_later_gets_a_column(tmp_path):
    write(tmp_path, report(2, loss=1.0), report(4, loss=0.5, f1=0.25), report(6, loss=0.1))
    assert [row["f1"] for row in rows(tmp_path)] == ["", "0.25", ""]
    assert list(rows(tmp_path)[0]) == ["step", "epoch", "loss", "f1", "lr", "records_per_s"]


def test_each_group_of_parameters_has_a_column_of_its_rate(tmp_path):
    write(tmp_path, replace(report(2), rates={"head": 0.5, "others, block 0": 0.25}))
    (row,) = rows(tmp_path)
    assert [row["lr_head"], row["lr_others, block 0"]] == ["0.5", "0.25"]


def test_a_metric_named_like_a_formula_keeps_its_column_when_a_run_is_resumed(tmp_path):
    write(tmp_path, report(2, **{"=f": 1.0, "loss": -1.0}))
    write(tmp_path, report(4, **{"=f": 2.0, "loss": -2.0}), start_step=2)
    assert [(row["'=f"], row["loss"]) for row in rows(tmp_path)] == [
        ("1.0", "-1.0"),
        ("2.0", "-2.0"),
    ]


@pytest.mark.parametrize("torn", ["4,1", "4,1,1.0,0.5,10", "4"])
def test_a_torn_last_row_is_dropped(tmp_path, torn):
    write(tmp_path, report(2))
    with open(tmp_path / "curves" / "train.csv", "a", encoding="utf-8") as file:
        file.write(torn)
    write(tmp_path, report(4, loss=2.0), start_step=4)
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [("2", "1.0"), ("4", "2.0")]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("metric", ["loss", "f1"])
def test_a_full_disk_costs_rows_only_while_it_is_full(tmp_path, split, metric):
    sink = CsvSink(run=RunContext(tmp_path, 10, 1))
    sink.write(report(2))
    with small_disk(10), pytest.raises((OSError, ResourceError)):
        sink.write(report(4, split, **{metric: 0.5}))
    sink.write(report(6, split, loss=0.1, f1=0.2))
    sink.close()
    assert [row["step"] for row in rows(tmp_path, split) if row["f1"]] == ["6"]
