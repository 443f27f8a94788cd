"""Which of two validations is better, by one metric."""

import math

import pytest

from framework.errors import ConfigError
from framework.train.goal import Goal, value_of


@pytest.mark.parametrize(
    ("higher", "new", "old", "expected"),
    [
        (True, 0.5, 0.4, True),
        (True, 0.4, 0.4, False),
        (False, 0.3, 0.4, True),
        (False, 0.5, 0.4, False),
        (True, 0.1, math.nan, True),
        (True, math.nan, 0.1, False),
        (False, math.nan, math.nan, False),
    ],
)
def test_a_metric_is_raised_or_lowered_and_a_number_beats_nan(higher, new, old, expected):
    assert Goal("f1", higher).better({"f1": new}, {"f1": old}) is expected


def test_anything_beats_a_validation_without_the_metric():
    assert Goal("f1", True).better({"f1": 0.0}, {"loss": 1.0, "step": 3})


def test_a_metric_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"C331\]: stop\.metric = f1: .*; use loss, accuracy$"):
        Goal("f1", True, "stop.metric").better({"loss": 1.0, "accuracy": 0.5}, {})


def test_a_metric_without_a_set_s_name_is_the_first_set_s():
    means = {"clean.accuracy": 0.9, "noisy.accuracy": 0.4}
    assert value_of(means, "accuracy") == 0.9
    assert value_of(means, "noisy.accuracy") == 0.4
    assert value_of(means, "curacy") is None
