import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import framework.sink.console
from framework.contracts.span import LateRank, RankReport
from framework.contracts.training import Report, RunContext
from framework.sink.console import ConsoleSink
from framework.system.safe_text import SafeConsole
from tests.fakes import span

SPANS = {"wait": span(0.25), "forward": span(0.75)}
USAGE = {"peak_rss_bytes": 1.5 * 2**30, "peak_device_bytes": 3.25 * 2**30}
USAGE |= {"gpu_busy_share": 0.5, "workers_cpu_cores": 1.25}
TRAIN = Report("train", 3, 1, {"loss": 0.5}, 1234.0, SPANS, 0.1, epoch_left=1280, left_s=3723.4)
VAL = Report("val", 4, 2, {"accuracy": 0.75, "loss": 0.125}, 1000.0, {}, 0.1)


@pytest.fixture
def write(tmp_path, capsys):
    """Return a function that writes reports and returns standard output and standard error."""

    def write(*reports):
        sink = ConsoleSink(run=RunContext(tmp_path, total_steps=10, epochs=2))
        for report in reports:
            sink.write(report)
        sink.close()
        return capsys.readouterr()

    return write


def test_a_validation_is_a_line_with_every_metric(write):
    assert write(VAL).err.strip() == "epoch 2/2  step 4  val accuracy 0.7500  val loss 0.1250"


@pytest.fixture
def drawn(write, monkeypatch):
    """Return a function that draws one report on a terminal of some width and returns the text."""

    def drawn(report, width=160):
        kind = partial(SafeConsole, force_terminal=True, width=width)
        monkeypatch.setattr(framework.sink.console, "SafeConsole", kind)
        return write(report).err

    return drawn


def test_on_a_terminal_the_bar_says_where_the_run_is_and_how_long_it_waits(drawn):
    text = drawn(TRAIN)
    words = ("epoch 1/2", "3/10 steps", "loss 0.5000", "1,234/s", "wait 25 %", "left 1:02:03")
    assert all(word in text for word in (*words, "1,280 left of epoch"))


def test_where_a_device_works_beside_the_host_its_idle_time_is_what_counts(drawn):
    result = drawn(replace(TRAIN, spans={**SPANS, "idle": span(0.25)}))
    assert "idle 25 %" in result
    assert "wait" not in result


def test_a_rank_for_which_the_others_wait_is_named(drawn):
    ranks = RankReport(4, {}, LateRank(3, "backward", 0.71, 0.012, 0.09))
    assert "rank 3 late 12 ms (backward)" in drawn(replace(TRAIN, ranks=ranks), width=120)
    assert "rank" not in drawn(replace(TRAIN, ranks=RankReport(4)))


def test_what_the_machine_does_is_shown_if_there_is_room(drawn):
    report = replace(TRAIN, usage=USAGE)
    for words in ("3.2 GiB", "gpu 50 %", "workers 1.2 cores"):
        assert words in drawn(report)
        assert words not in drawn(report, width=90)
    assert "1.5 GiB" in drawn(replace(TRAIN, usage={"peak_rss_bytes": 1.5 * 2**30}))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_line_is_one_line_and_its_loss_is_whole(drawn, width):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn(replace(TRAIN, usage=USAGE), width))
    lines = [line for line in text.split("\n") if line.strip()]
    assert all("epoch 1/2" in line for line in lines)
    assert "loss 0.5000" in lines[-1]
    assert "…" not in lines[-1]


def test_a_line_of_a_validation_set_names_it_and_leaves_arrays_out(write):
    arrays = {"confusion": torch.ones(2, 2)}
    text = "".join(write(replace(VAL, split="val.clean", arrays=arrays)))
    assert "val.clean accuracy 0.7500" in text
    assert "confusion" not in text


def test_a_line_in_a_pipe_is_whole_however_many_metrics_it_has(write):
    means = {f"metric_{number}": 0.5 for number in range(20)}
    (line,) = write(replace(VAL, means=means)).err.splitlines()
    assert line.endswith("val metric_19 0.5000")
