import pytest
from rich.console import Console

import framework.sink.console
from framework.contracts import Report, RunContext
from framework.sink.console import ConsoleSink

TRAIN = Report("train", 3, 1, {"loss": 0.5}, 1234.0, {"wait": 0.25, "forward": 0.75}, 0.1)
VAL = Report("val", 4, 2, {"accuracy": 0.75, "loss": 0.125}, 1000.0, {}, 0.1)


@pytest.fixture
def write(tmp_path, capsys):
    """Writes reports; returns what stood on standard output and standard error."""

    def write(*reports):
        sink = ConsoleSink(run=RunContext(tmp_path, total_steps=10, epochs=2))
        for report in reports:
            sink.write(report)
        sink.close()
        return capsys.readouterr()

    return write


def test_a_validation_is_a_line_with_every_metric(write):
    assert write(VAL).err.strip() == "epoch 2/2  step 4  val accuracy 0.7500  val loss 0.1250"


def test_standard_output_stays_free(write):
    assert write(TRAIN, VAL).out == ""


def test_without_a_terminal_there_is_no_bar(write):
    assert write(TRAIN, TRAIN).err.strip() == ""


def test_on_a_terminal_the_bar_says_where_the_run_is_and_how_long_it_waits(write, monkeypatch):
    monkeypatch.setattr(framework.sink.console, "Console", lambda **options: Console(**options, force_terminal=True, width=160))
    drawn = write(TRAIN).err
    for words in ("epoch 1/2", "3/10 steps", "loss 0.5000", "1,234/s", "wait 25 %"):
        assert words in drawn
