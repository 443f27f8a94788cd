"""Predictions as columns."""

import numpy as np
import pytest
import torch

from framework.commands.predict.prediction_files import (
    BOXES,
    TABLE,
    check_form,
    check_top_k,
    shortest,
    table_columns,
)
from framework.contracts.prediction import ClassProbabilities, PredictedNumbers, PredictedTexts
from framework.errors import ConfigError

PROBABILITIES = ClassProbabilities(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]))


def test_classes_come_with_the_most_probable_first():
    columns = table_columns(PROBABILITIES, ["a", "b"], top_k=2)
    assert columns == {
        "class": ["b", "a"],
        "probability": [0.7, 0.5],
        "class_2": ["2", "2"],  # without a name
        "probability_2": [0.2, 0.3],
    }


def test_one_number_is_one_column_and_several_are_numbered():
    single = table_columns(PredictedNumbers(torch.tensor([[0.1], [3.0]])), [], 1)
    assert single == {"value": [0.1, 3.0]}
    several = table_columns(PredictedNumbers(torch.ones(1, 2)), [], 1)
    assert list(several) == ["value_0", "value_1"]


def test_the_shortest_text_gives_a_float_back():
    numbers = np.array([0.1, 1 / 3, 1e-20], np.float32)
    assert np.array_equal(np.array(shortest(numbers), np.float32), numbers)
    assert shortest(numbers)[0] == 0.1


def test_what_an_output_cannot_hold_is_refused():
    check_form(PROBABILITIES, TABLE, "x.csv")
    with pytest.raises(ConfigError, match=r"C354.*rows of a table; give output=FILE.csv"):
        check_form(PROBABILITIES, BOXES, "x.json")
    with pytest.raises(ConfigError, match=r"C355.*has 3 classes"):
        check_top_k(PROBABILITIES, 4)
    with pytest.raises(ConfigError, match=r"C355.*no classes"):
        check_top_k(PredictedTexts([]), 2)
