import pytest
import torch

from framework.objective.model_inputs import model_inputs, prediction

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
