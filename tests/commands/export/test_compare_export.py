import math

import pytest
import torch

from framework.commands.export.export_model import compare, difference
from framework.commands.export.exportable import Exportable
from framework.errors import ConfigError

INPUTS = torch.arange(6.0).reshape(3, 2)


def doubled(batch_size=None):
    class Doubled(torch.nn.Module):
        def forward(self, values):
            return (values * 2,)

    return Exportable(Doubled(), (INPUTS,), (INPUTS * 2,), ("x",), ("y",), batch_size)


def test_an_export_that_computes_the_same_is_timed_in_turn_with_the_model():
    calls = []

    def runner(inputs):
        calls.append(len(inputs[0]))
        return (inputs[0] * 2 + 0.25,)

    first, second = compare(doubled(), runner, 1.0, 4)
    assert first == "largest difference: 0.25 over 3 records (tolerance 1)"
    assert second.startswith("time of 3 records: model ")
    assert second.count("ms ±") == 2
    assert calls == [3, 1] + 7 * [3]


@pytest.mark.parametrize(
    ("runner", "what"),
    [
        (lambda inputs: (inputs[0] * 2.5,), "differs from the model by 2.5"),
        (lambda inputs: (), r"shapes \[\] instead of \[\(3, 2\)\]"),
        (lambda inputs: (inputs[0].T * 2,), r"shapes \[\(2, 3\)\] instead of"),
        (lambda inputs: (inputs[0] * math.nan,), "differs from the model by inf"),
        (lambda inputs: (inputs[0][[0] * 3][: len(inputs[0])] * 2,), "differs from the model by 8"),
    ],
)
def test_an_export_that_differs_is_refused(runner, what):
    with pytest.raises(ConfigError, match=f"C384.*{what}"):
        compare(doubled(), runner, 0.001, 1)


def test_an_export_of_one_size_is_not_tried_with_another():
    def runner(inputs):
        assert len(inputs[0]) == 3
        return (inputs[0] * 2,)

    assert compare(doubled(batch_size=3), runner, 0, 1)[0].startswith("largest difference: 0 ")


@pytest.mark.parametrize(
    ("output", "expected", "result"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([math.nan, math.inf], [math.nan, math.inf], 0.0),
        ([math.nan, 0.0], [0.0, 0.0], math.inf),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_the_largest_or_the_share_of_integers(output, expected, result):
    assert difference(torch.tensor(output), torch.tensor(expected)) == result
