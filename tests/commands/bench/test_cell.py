import json
import math

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.bench import cell as module
from framework.commands.bench.cell import PARTS, measure, together, yardstick

NOBODY = Grant(frozenset(), "")


def spec(*words: str, what: str = "loader") -> dict:
    config, allowed = composed(["data=synthetic", "batch_size=8", *words], NOBODY)
    return {"config": config, "allowed": allowed, "what": what, "seconds": 0.08, "burn_in": 0.0}


@pytest.mark.parametrize("what", PARTS)
def test_each_part_is_measured_by_windows(what):
    measured = measure(spec(what=what))
    assert len(measured["windows"]) == 8
    assert all(
        math.isfinite(rate) and rate > 0
        for rate in [*measured["windows"], measured["yardstick_per_s"]]
    )
    json.dumps(measured)


def test_a_choice_that_cannot_run_has_its_reason():
    measured = measure(spec("model.in_channels=3", what="train"))
    assert set(measured) == {"illegal"}
    assert measured["illegal"].startswith("error[C155]")


def test_an_unexpected_error_is_one_line(capsys):
    wrong = spec()
    del wrong["config"]["loader"]
    assert measure(wrong) == {"failed": "KeyError: 'loader'"}
    assert "Traceback" in capsys.readouterr().err


def test_ranks_add_up():
    first = {
        "windows": [1.0, 2.0, 3.0],
        "spans_s": {"wait": 1.0, "copy": 0.0},
        "yardstick_per_s": 5.0,
    }
    second = {"windows": [10.0, 20.0], "spans_s": {"wait": 3.0}, "yardstick_per_s": 6.0}
    assert together([first, second]) == {
        "windows": [11.0, 22.0],
        "spans_s": {"wait": 2.0, "copy": 0.0},
        "yardstick_per_s": 5.0,
    }


def test_the_yardstick_is_the_sum_over_the_cores(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "num_cores", lambda: 3)
    monkeypatch.setattr(module, "_hash", lambda end: calls.append(end) or 10.0)
    assert yardstick() == 30.0
    assert len(calls) == 3
