import numpy as np
import pytest

from framework.errors import ConfigError
from framework.input.digits_input import DigitsInput

TRAIN, VAL = DigitsInput("train"), DigitsInput("val")


def _all(source):
    return source.read(0, source.manifest.num_records).records


def test_a_fifth_is_for_validation():
    assert (TRAIN.manifest.num_records, VAL.manifest.num_records) == (1437, 360)


def test_no_digit_is_in_both_splits():
    images = [{image.tobytes() for image in _all(source)["image"]} for source in (TRAIN, VAL)]
    assert not images[0] & images[1]


@pytest.mark.parametrize("source", [TRAIN, VAL])
def test_digits_come_in_the_order_of_their_labels_and_every_label_is_there(source):
    label = _all(source)["label"]
    assert np.array_equal(label, np.sort(label))
    assert np.bincount(label).min() > 25
    assert len(np.bincount(label)) == len(source.manifest.classes) == 10


def test_every_digit_has_its_number_in_scikit_learns_order_as_key():
    keys = [source.read(0, source.manifest.num_records).keys for source in (TRAIN, VAL)]
    assert sorted(map(int, keys[0] + keys[1])) == list(range(1797))
    assert TRAIN.name(0) == f"scikit-learn digit {keys[0][0]}"


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match=r"C116.*input\.split = test"):
        DigitsInput("test")
