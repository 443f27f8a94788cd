import cv2
import numpy as np
import pytest
from paceline_examples.drawn_chips import drawn_chips


def drawn(item, seed=0, size=64):
    (record,) = drawn_chips(item, seed, size)
    return record, cv2.imdecode(np.frombuffer(record["image"], np.uint8), cv2.IMREAD_COLOR).astype(
        int
    )


@pytest.mark.parametrize("item", range(6))
def test_a_photo_of_a_good_or_a_spoilt_one(item):
    record, pixels = drawn(item)
    assert record["label"] == item % 2
    assert pixels.shape == (64, 64, 3)
    assert pixels.std() > 10


def test_the_same_item_is_the_same_photo_and_another_seed_another():
    assert drawn(3)[0] == drawn(3)[0]
    assert drawn(3)[0]["image"] != drawn(3, seed=1)[0]["image"] != drawn(5, seed=1)[0]["image"]


def test_spoilt_ones_have_brown_spots():
    darkest = [
        [np.percentile(drawn(item, size=128)[1].sum(2), 1) for item in range(start, 24, 2)]
        for start in (0, 1)
    ]
    assert np.median(darkest[0]) > 1.2 * np.median(darkest[1])
