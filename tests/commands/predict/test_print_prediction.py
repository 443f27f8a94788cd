"""What a prediction prints at its end."""

from pathlib import Path
from types import SimpleNamespace

from framework.commands.predict.prediction_job import Predicted
from framework.commands.predict.print_prediction import print_prediction


def test_the_speed_is_that_of_the_records_of_this_command(capsys):
    made = SimpleNamespace(path=Path("x.csv"))
    print_prediction(made, Predicted(100, 40, []), wall_s=2.0)
    line = capsys.readouterr().out
    assert "predicted 100 records into x.csv: 2.0 s, 30 records/s, 0 skipped" in line
    assert "(40 records had been predicted before)" in line
