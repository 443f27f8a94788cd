import pickle
from functools import partial

import numpy as np
import pytest

from framework.transform.opencv import OpenCVTransform, ShiftFlip
from tests.contract.cases import pixels

IMAGE = pixels(0)  # [16, 12, 3]


def by_hand(image: np.ndarray, top: int, left: int, mirrored: bool, padding: int) -> np.ndarray:
    wide = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    window = wide[top : top + image.shape[0], left : left + image.shape[1]]
    return window[:, ::-1] if mirrored else window


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_one_of_all_possible_shifts(channels):
    image = IMAGE[:, :, :channels]
    shifted = [ShiftFlip(2, 0.5)({"image": image}, seed)["image"] for seed in range(300)]
    possible = {
        by_hand(image, top, left, m, 2).tobytes()
        for top in range(5)
        for left in range(5)
        for m in (False, True)
    }
    assert {result.tobytes() for result in shifted} == possible
    assert all(result.shape == image.shape and result.flags.c_contiguous for result in shifted)


def test_a_pair_is_changed_alike_and_outside_training_nothing_is():
    change = partial(ShiftFlip(4, 0.5), {"blurry": IMAGE, "sharp": 255 - IMAGE})
    inside = change(3)["blurry"].any(2, keepdims=True)
    assert np.array_equal(change(3)["blurry"] * inside, (255 - change(3)["sharp"]) * inside)
    assert np.array_equal(change(None)["sharp"], 255 - IMAGE)


def test_the_seed_decides_also_in_a_process_of_its_own():
    function = OpenCVTransform(4, 0.5).function
    copy = pickle.loads(pickle.dumps(function))
    assert np.array_equal(
        function({"image": IMAGE}, 9)["image"], copy({"image": IMAGE}, 9)["image"]
    )


@pytest.mark.parametrize(("padding", "flip"), [(-1, 0.5), (4, 1.5)])
def test_what_cannot_be_is_refused(padding, flip):
    with pytest.raises(ValueError, match=r"padding|flip"):
        OpenCVTransform(padding, flip)
