import pytest
import torch

from framework.objective.model_inputs import for_target, model_inputs, prediction

BATCH = {"sound": 1, "sound_length": 2, "label": 3}


@pytest.mark.parametrize(
    ("names", "fields"),
    [("sound", [1]), (["sound"], [1]), (["sound_length", "sound"], [2, 1])],
)
def test_fields_come_in_the_order_of_their_names(names, fields):
    assert model_inputs(BATCH, names) == fields


def test_a_missing_field_is_an_error():
    with pytest.raises(KeyError, match="image"):
        model_inputs(BATCH, ["sound", "image"])


class Output:
    def __init__(self, logits):
        self.logits = logits


def test_the_prediction_of_other_libraries_models_is_found_in_their_output():
    logits = torch.ones(2, 3)
    assert prediction(logits) is logits
    assert prediction(Output(logits)) is logits
    assert prediction({"out": logits, "aux": None}) is logits


def test_any_other_output_is_the_prediction_itself():
    boxes = [torch.ones(1, 4)]
    assert prediction(boxes) is boxes


@pytest.mark.parametrize(
    ("output", "target", "expected"),
    [
        ((3, 1), (3,), (3,)),
        ((1, 1), (1,), (1,)),
        ((3,), (3,), (3,)),
        ((3, 1), (3, 1), (3, 1)),
        ((3, 2), (3,), (3, 2)),
        ((3, 1, 1), (3,), (3, 1, 1)),
        ((2, 1), (3,), (2, 1)),  # a target of another number of records
    ],
)
def test_only_one_number_per_record_loses_its_dimension(output, target, expected):
    assert for_target(torch.zeros(output), torch.zeros(target)).shape == expected


def test_what_is_no_tensor_stays_as_it_is():
    boxes = [torch.zeros(2, 4)]
    assert for_target(boxes, torch.zeros(1)) is boxes
