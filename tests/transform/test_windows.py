"""Which window of an image each transform takes, and how the window is flipped."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.data.reader import BatchReader
from framework.errors import ConfigError, DataError
from framework.media.scale import scale_into
from framework.order.draws import draws
from framework.store.hdf5_store import HDF5Store
from framework.transform import center_crop, function, opencv
from framework.transform.flip import FlipTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from framework.transform.rotate import CODES, Rotate
from framework.transform.shorter_side import ShorterSide
from framework.transform.sound_window import SoundWindow
from framework.transform.video_window import VideoWindow
from tests.conftest import make_context, make_records, write_store

BELOW_ONE = 1 - 2**-24
NUMBERS = st.floats(0, BELOW_ONE, width=32) | st.sampled_from([0.0, BELOW_ONE])
SIDES = st.integers(1, 3000)


def window_of(transform, height, width, numbers=None):
    """Return top, left, height, width and flip for one image, drawn from ``numbers`` if given."""
    drawn = None if numbers is None else torch.tensor([numbers], dtype=torch.float32)
    return transform.windows(torch.tensor([[height, width]]), drawn)[0].tolist()


def windows_of_many(transform, height, width, count=2000):
    """Return the windows of ``count`` images of one size in training: int64 [count, 5]."""
    sizes = torch.tensor([[height, width]]).expand(count, 2)
    return transform.windows(sizes, draws(torch.arange(count), 0, 0, transform.num_draws))


@pytest.mark.parametrize(
    ("image", "size", "window"),
    [
        ((10, 20), (5, 5), [0, 5, 10, 10, 0]),
        ((100, 100), (50, 25), [0, 25, 100, 50, 0]),
        ((1, 100), (10, 10), [0, 49, 1, 1, 0]),
    ],
)
def test_resize_takes_the_largest_centered_window_of_the_target_s_shape(image, size, window):
    assert window_of(Resize(size, True, True), *image) == window


@pytest.mark.parametrize(
    ("image", "window"), [((512, 1024), [32, 288, 448, 448, 0]), ((1, 1), [0, 0, 1, 1, 0])]
)
def test_center_crop_takes_the_middle_after_scaling_the_shorter_side(image, window):
    assert window_of(center_crop.CenterCrop([224, 224], 256, True), *image) == window


@pytest.mark.parametrize(
    ("size", "expected"), [((100, 200), (50, 100)), ((200, 100), (100, 50)), ((30, 41), (50, 68))]
)
def test_the_shorter_side_gets_the_length_and_the_other_follows(size, expected):
    assert ShorterSide(50, True).scaled(torch.tensor([size])).tolist() == [list(expected)]


def test_shorter_side_needs_a_crop_behind_it():
    store = HDF5Store(write_store("x.h5", make_records(3)))
    with pytest.raises(ConfigError, match=r"C199.*several sizes.*transform=compose"):
        BatchReader(store, make_context(transform=ShorterSide(8, True)))
    with pytest.raises(ValueError, match=r"several sizes.*transform=compose"):
        function.FunctionTransform(dict, ShorterSide(8, True), evaluation=False)


@pytest.mark.parametrize(
    ("flip", "flip_vertical", "code"), [(0.0, 0.0, 0), (1.0, 0.0, 1), (0.0, 1.0, 2), (1.0, 1.0, 3)]
)
def test_mirroring_is_1_turning_upside_down_2_and_both_3(flip, flip_vertical, code):
    windows = windows_of_many(FlipTransform(flip, flip_vertical), 30, 40, 5)
    assert windows.tolist() == [[0, 0, 30, 40, code]] * 5


@pytest.mark.parametrize("turns", range(4))
def test_rotate_turns_counterclockwise(turns):
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    expected = np.rot90(image, turns).transpose(2, 0, 1)
    out = np.empty(expected.shape, np.uint8)
    scale_into(image, True, CODES[turns], out)
    assert np.array_equal(out, expected)


@given(st.integers(8, 3000), st.integers(6, 3000), st.lists(NUMBERS, min_size=4, max_size=4))
def test_any_window_of_random_crop_is_that_of_plain_numbers(height, width, numbers):
    corner = [int(numbers[0] * (height - 8 + 1)), int(numbers[1] * (width - 6 + 1))]
    code = int(numbers[2] < 0.5) + 2 * int(numbers[3] < 0.25)
    window = window_of(RandomCrop([8, 6], 0.5, 0.25), height, width, numbers)
    assert window == [*corner, 8, 6, code]


def test_random_crop_reaches_every_place_and_takes_the_middle_outside_training():
    crop = RandomCrop([8, 6], 0.5, 0.25)
    assert len(windows_of_many(crop, 10, 8).unique(dim=0)) == 3 * 3 * 4
    assert window_of(crop, 10, 8) == [1, 1, 8, 6, 0]


@pytest.mark.parametrize("numbers", [None, [0.5] * 4], ids=["validation", "training"])
@pytest.mark.parametrize("small", [(7, 6), (8, 5)], ids=["low", "narrow"])
def test_random_crop_refuses_a_smaller_image_and_names_both_sizes(small, numbers):
    with pytest.raises(DataError, match=rf"D130.*\[8, 6\].*{small[0]} x {small[1]} pixels"):
        window_of(RandomCrop([8, 6], 0.5, 0.25), *small, numbers)


def random_resized_crop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5):
    return RandomResizedCrop((224, 224), scale, ratio, flip, 0.25, antialias=True)


def slow_window(height, width, numbers):
    """Return the window and the flips of one record, computed with plain numbers."""
    area_draw, ratio_draw, top_draw, left_draw, mirror_draw, turn_draw = numbers
    area = height * width * (0.08 + area_draw * 0.92)
    ratio = math.exp(math.log(3 / 4) + ratio_draw * (math.log(4 / 3) - math.log(3 / 4)))
    wanted = math.sqrt(area / ratio), math.sqrt(area * ratio)
    shrink = min(1.0, height / wanted[0], width / wanted[1])
    cut = [
        min(side, max(1, round(length * shrink)))
        for side, length in zip((height, width), wanted, strict=True)
    ]
    corner = int(top_draw * (height - cut[0] + 1)), int(left_draw * (width - cut[1] + 1))
    return [*corner, *cut, int(mirror_draw < 0.5) + 2 * int(turn_draw < 0.25)]


@given(SIDES, SIDES, st.lists(NUMBERS, min_size=6, max_size=6))
def test_any_window_of_random_resized_crop_is_that_of_plain_numbers(height, width, numbers):
    window = window_of(random_resized_crop(), height, width, numbers)
    expected = slow_window(height, width, numbers)
    pairs = zip(window, expected, strict=True)
    assert all(abs(actual - reference) <= 1 for actual, reference in pairs)
    assert window[4] == expected[4]
    top, left, cut_height, cut_width, _ = window
    assert 0 <= top < top + cut_height <= height
    assert 0 <= left < left + cut_width <= width


def test_windows_lie_in_their_sounds_and_begin_anywhere():
    lengths = torch.tensor([10, 11, 13] * 200)
    starts = SoundWindow(10).starts(lengths, draws(torch.arange(600), 0, 0, 1))
    assert starts.view(-1, 3).amax(0).tolist() == [0, 1, 3]
    assert starts.min() == 0
    assert SoundWindow(4).starts(torch.tensor([2, 4, 9]), None).tolist() == [0, 0, 2]


def test_clips_begin_at_every_place_equally_often():
    lengths = torch.full((900,), 7)
    numbers = VideoWindow(3, 2).frame_numbers(lengths, draws(torch.arange(900), 0, 0, 1))
    assert set(map(tuple, numbers.tolist())) == {(0, 2, 4), (1, 3, 5), (2, 4, 6)}
    assert min(torch.bincount(numbers[:, 0])) > 240


def test_a_short_video_has_its_last_frame_repeated():
    for drawn in (None, draws(torch.arange(2), 0, 0, 1)):
        numbers = VideoWindow(4, 2).frame_numbers(torch.tensor([1, 4]), drawn)
        assert numbers.tolist() == [[0, 0, 0, 0], [0, 2, 3, 3]]


@given(
    st.lists(st.tuples(SIDES, SIDES, *[NUMBERS] * 6), max_size=5),
    st.tuples(NUMBERS, NUMBERS),
    st.sampled_from([(0.08, 1.0), (1.0, 1.0)]),
)
def test_compiled_windows_are_those_of_numpy(images, flips, scale):
    table = np.array(images, np.float64).reshape(-1, 8)
    sizes = torch.from_numpy(table[:, :2].astype(np.int64))
    numbers = torch.from_numpy(table[:, 2:].astype(np.float32))
    crop = RandomResizedCrop([8, 8], scale, [3 / 4, 4 / 3], *flips, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framework.transform.random_resized_crop.find", lambda name: None)
        expected = crop.windows(sizes, numbers)
    apart = torch.cat([sizes, sizes], dim=1)[:, 2:]  # as in a table of headers
    assert np.array_equal(crop.windows(sizes, numbers), expected)
    assert np.array_equal(crop.windows(apart, numbers), expected)


REFUSED = {
    "height, width": [lambda: Resize([8], True, True), lambda: Resize([8, 0], True, True)],
    "resize = 200": [lambda: center_crop.CenterCrop([224, 100], 200, antialias=True)],
    "probability": [lambda: FlipTransform(-0.1, 0.0), lambda: RandomCrop([8, 6], 0.0, 1.1)],
    "quarter turns, 0 to 3": [lambda turns=turns: Rotate(turns) for turns in ([], [4], [1.5])],
    "scale = ": [lambda: random_resized_crop([0.0, 1.0]), lambda: random_resized_crop([0.5, 0.2])],
    "or ratio = ": [lambda: random_resized_crop(ratio=[2.0, 1.0])],
    "samples = 0": [lambda: SoundWindow(0)],
    "both must be at least 1": [lambda: VideoWindow(0, 1), lambda: VideoWindow(4, 0)],
    "length = 0": [lambda: ShorterSide(0, True)],
    "padding = -1": [lambda: opencv.OpenCVTransform(-1, 0.5)],
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_that_mean_nothing_are_refused(words):
    for make in REFUSED[words]:
        with pytest.raises(ValueError, match=words):
            make()
