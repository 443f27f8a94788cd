import pytest

from framework.objective.model_inputs import model_inputs

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
