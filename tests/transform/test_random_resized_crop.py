import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.order import draws
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize

CROP = RandomResizedCrop([224, 224], [0.08, 1.0], [3 / 4, 4 / 3], 0.5)
BELOW_ONE = 1 - 2**-24
NUMBERS = st.floats(0, BELOW_ONE, width=32)
SIZES = torch.tensor([[375, 500]] * 4000)


def _window(height, width, numbers):
    return CROP.windows(torch.tensor([[height, width]]), torch.tensor([numbers], dtype=torch.float32))[0].tolist()


def _slow(height, width, numbers):
    """One record at a time, in plain numbers."""
    area_draw, ratio_draw, top_draw, left_draw, flip_draw = numbers
    area = height * width * (0.08 + area_draw * 0.92)
    ratio = math.exp(math.log(3 / 4) + ratio_draw * (math.log(4 / 3) - math.log(3 / 4)))
    wanted = math.sqrt(area / ratio), math.sqrt(area * ratio)
    shrink = min(1.0, height / wanted[0], width / wanted[1])
    cut_height, cut_width = (min(side, max(1, round(w * shrink))) for side, w in zip((height, width), wanted, strict=True))
    corner = int(top_draw * (height - cut_height + 1)), int(left_draw * (width - cut_width + 1))
    return [*corner, cut_height, cut_width, int(flip_draw < 0.5)]


@given(st.integers(1, 800), st.integers(1, 800), st.lists(NUMBERS, min_size=5, max_size=5))
def test_every_window_equals_the_slow_reference(height, width, numbers):
    found, expected = _window(height, width, numbers), _slow(height, width, numbers)
    assert all(abs(one - two) <= 1 for one, two in zip(found, expected, strict=True))
    assert found[4] == expected[4]


@given(st.integers(1, 5000), st.integers(1, 5000), st.lists(st.sampled_from([0.0, BELOW_ONE]), min_size=5, max_size=5))
def test_a_window_lies_inside_the_image_for_the_most_extreme_draws(height, width, numbers):
    top, left, cut_height, cut_width, _ = _window(height, width, numbers)
    assert 0 <= top <= top + cut_height <= height
    assert 0 <= left <= left + cut_width <= width
    assert min(cut_height, cut_width) >= 1


def test_areas_and_ratios_stay_in_their_ranges():
    windows = CROP.windows(SIZES, draws(torch.arange(4000), 0, 0, 5)).double()
    share = windows[:, 2] * windows[:, 3] / (375 * 500)
    ratio = windows[:, 3] / windows[:, 2]
    assert 0.075 < float(share.min()) < 0.1
    assert 0.9 < float(share.max()) <= 1
    assert 0.74 < float(ratio.min()) < 0.76
    assert 1.32 < float(ratio.max()) < 1.35


def test_corners_reach_every_side_and_half_are_flipped():
    windows = CROP.windows(SIZES, draws(torch.arange(4000), 0, 0, 5))
    assert int(windows[:, 0].min()) == int(windows[:, 1].min()) == 0
    assert int((windows[:, 0] + windows[:, 2]).max()) == 375
    assert int((windows[:, 1] + windows[:, 3]).max()) == 500
    assert 1850 < int(windows[:, 4].sum()) < 2150


@pytest.mark.parametrize(("flip", "expected"), [(0.0, 0), (1.0, 1)])
def test_the_flip_follows_its_probability(flip, expected):
    crop = RandomResizedCrop([8, 8], [0.5, 1.0], [1.0, 1.0], flip)
    windows = crop.windows(SIZES[:50], draws(torch.arange(50), 0, 0, 5))
    assert set(windows[:, 4].tolist()) == {expected}


def test_the_whole_area_of_a_square_is_the_whole_image():
    crop = RandomResizedCrop([8, 8], [1.0, 1.0], [1.0, 1.0], 0.0)
    assert crop.windows(torch.tensor([[40, 40]]), torch.rand(1, 5)).tolist() == [[0, 0, 40, 40, 0]]


def test_outside_training_it_is_a_resize():
    sizes = torch.tensor([[375, 500], [10, 3], [1, 1]])
    assert torch.equal(CROP.windows(sizes, None), Resize([224, 224]).windows(sizes, None))
