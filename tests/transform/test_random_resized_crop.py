import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.order.draws import draws
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize


def crop(size=(224, 224), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5, flip_vertical=0.0):
    return RandomResizedCrop(size, scale, ratio, flip, flip_vertical, antialias=True)


CROP = crop(flip_vertical=0.25)
BELOW_ONE = 1 - 2**-24
NUMBERS = st.floats(0, BELOW_ONE, width=32)
SIZES = torch.tensor([[375, 500]] * 4000)


def _window(height, width, numbers):
    return CROP.windows(
        torch.tensor([[height, width]]), torch.tensor([numbers], dtype=torch.float32)
    )[0].tolist()


def _slow(height, width, numbers):
    """Return the window and the flips of one record, computed with plain numbers."""
    area_draw, ratio_draw, top_draw, left_draw, mirror_draw, turn_draw = numbers
    area = height * width * (0.08 + area_draw * 0.92)
    ratio = math.exp(math.log(3 / 4) + ratio_draw * (math.log(4 / 3) - math.log(3 / 4)))
    wanted = math.sqrt(area / ratio), math.sqrt(area * ratio)
    shrink = min(1.0, height / wanted[0], width / wanted[1])
    cut_height, cut_width = (
        min(side, max(1, round(w * shrink)))
        for side, w in zip((height, width), wanted, strict=True)
    )
    corner = int(top_draw * (height - cut_height + 1)), int(left_draw * (width - cut_width + 1))
    return [*corner, cut_height, cut_width, int(mirror_draw < 0.5) + 2 * int(turn_draw < 0.25)]


@given(st.integers(1, 800), st.integers(1, 800), st.lists(NUMBERS, min_size=6, max_size=6))
def test_every_window_equals_the_slow_reference(height, width, numbers):
    window, expected = _window(height, width, numbers), _slow(height, width, numbers)
    assert all(
        abs(actual - reference) <= 1 for actual, reference in zip(window, expected, strict=True)
    )
    assert window[4] == expected[4]


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.lists(st.sampled_from([0.0, BELOW_ONE]), min_size=6, max_size=6),
)
def test_a_window_lies_inside_the_image_for_the_most_extreme_draws(height, width, numbers):
    top, left, cut_height, cut_width, _ = _window(height, width, numbers)
    assert 0 <= top <= top + cut_height <= height
    assert 0 <= left <= left + cut_width <= width
    assert min(cut_height, cut_width) >= 1


def test_areas_and_ratios_stay_in_their_ranges():
    windows = CROP.windows(SIZES, draws(torch.arange(4000), 0, 0, 6)).double()
    share = windows[:, 2] * windows[:, 3] / (375 * 500)
    ratio = windows[:, 3] / windows[:, 2]
    assert 0.075 < float(share.min()) < 0.1
    assert 0.9 < float(share.max()) <= 1
    assert 0.74 < float(ratio.min()) < 0.76
    assert 1.32 < float(ratio.max()) < 1.35


def test_corners_reach_every_side():
    windows = CROP.windows(SIZES, draws(torch.arange(4000), 0, 0, 6))
    assert int(windows[:, 0].min()) == int(windows[:, 1].min()) == 0
    assert int((windows[:, 0] + windows[:, 2]).max()) == 375
    assert int((windows[:, 1] + windows[:, 3]).max()) == 500


@pytest.mark.parametrize(
    ("flip", "flip_vertical", "expected"),
    [(0.0, 0.0, 0), (1.0, 0.0, 1), (0.0, 1.0, 2), (1.0, 1.0, 3)],
)
def test_the_flip_code_follows_the_probabilities(flip, flip_vertical, expected):
    windows = crop(flip=flip, flip_vertical=flip_vertical).windows(
        SIZES[:50], draws(torch.arange(50), 0, 0, 6)
    )
    assert set(windows[:, 4].tolist()) == {expected}


def test_half_are_mirrored_and_a_quarter_of_both_halves_upside_down():
    codes = CROP.windows(SIZES, draws(torch.arange(4000), 0, 0, 6))[:, 4].bincount()
    assert all(
        abs(int(code) - expected) < 120
        for code, expected in zip(codes, (1500, 1500, 500, 500), strict=True)
    )


def test_the_whole_area_of_a_square_is_the_whole_image():
    whole = crop([8, 8], [1.0, 1.0], [1.0, 1.0], 0.0)
    assert whole.windows(torch.tensor([[40, 40]]), torch.rand(1, 6)).tolist() == [[0, 0, 40, 40, 0]]


@given(st.integers(1, 800), st.integers(1, 800), st.integers(0, 1000), st.integers(0, 20))
def test_images_of_one_size_get_one_window(height, width, index, epoch):
    numbers = draws(torch.tensor([index]), 3, epoch, 6)
    blurry, sharp = (CROP.windows(torch.tensor([[height, width]]), numbers) for _ in range(2))
    assert torch.equal(blurry, sharp)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": [0.0, 1.0]},
        {"scale": [0.5, 0.2]},
        {"scale": [0.5, 1.5]},
        {"ratio": [2.0, 1.0]},
        {"flip": 1.5},
    ],
)
def test_ranges_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        crop(**wrong)


def test_outside_training_it_is_a_resize():
    sizes = torch.tensor([[375, 500], [10, 3], [1, 1]])
    assert torch.equal(
        CROP.windows(sizes, None), Resize([224, 224], True, True).windows(sizes, None)
    )
