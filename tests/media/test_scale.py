import io

import cv2
import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN
from framework.contracts.records import IGNORE
from framework.media import scale as scaling
from framework.media.decode import encode_png, window_pixels
from framework.media.header import BadImage, read_header
from framework.system.native import find
from tests.contract.cases import pixels
from tests.media import test_golden_pixels as golden
from tests.store.fuzz import flips, in_a_process, truncations

SIDES = st.integers(1, 60)


@given(st.integers(2, 150), st.integers(2, 150), SIDES, SIDES, st.sampled_from([1, 3]))
def test_shrinking_is_pillows_bilinear_within_a_level(height, width, high, wide, channels):
    high, wide = min(high, height), min(wide, width)
    image = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    planes = [Image.fromarray(image[:, :, channel]) for channel in range(channels)]
    expected = np.stack(
        [np.asarray(plane.resize((wide, high), Image.Resampling.BILINEAR)) for plane in planes], 2
    )
    assert (
        np.abs(scaling.scale(image, (high, wide), antialias=True).astype(int) - expected).max() <= 1
    )


LAYOUTS = {
    "neighbors of four channels": lambda image: image[..., :3],
    "channels backwards": lambda image: image[..., 2::-1],
    "one channel of several": lambda image: image[..., 1:2],
    "columns backwards": lambda image: image[:, ::-1, :3],
    "every second column": lambda image: image[:, ::2, :3],
    "rows backwards": lambda image: image[::-1, :, :3],
    "columns as rows": lambda image: image[..., :3].swapaxes(0, 1),
    "planes": lambda image: np.asfortranarray(image[..., :3]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("antialias", [True, False])
def test_an_array_of_any_layout_has_the_pixels_of_its_copy(layout, antialias):
    image = LAYOUTS[layout](np.random.default_rng(0).integers(0, 256, (37, 51, 4), np.uint8))
    scaled = scaling.scale(image, (13, 9), antialias)
    assert np.array_equal(scaled, scaling.scale(np.ascontiguousarray(image), (13, 9), antialias))


def nearest(image, size):
    """Return the pixel under the center of each result."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for old, new in zip(image.shape[:2], size, strict=True)
    )
    return image[rows][:, columns]


def turned_scaled_and_flipped(image, size, antialias, flip, labels):
    """Return what a batch is to hold of an image, uint8 [H, W, C], a step at a time."""
    image = np.ascontiguousarray(np.swapaxes(image, 0, 1) if flip & TURNED else image)
    if size is not None:
        image = nearest(image, size) if labels else scaling.scale(image, size, antialias)
    return image[:: -1 if flip & UPSIDE_DOWN else 1, :: -1 if flip & MIRRORED else 1]


@given(
    st.sampled_from([1, 3, 4]),
    st.booleans(),
    st.none() | st.tuples(SIDES, SIDES),
    st.booleans(),
    st.integers(0, 7),
    st.booleans(),
)
@example(3, True, (40, 50), True, 3, False)  # of its own size
@example(3, True, (20, 30), True, MIRRORED, False)
@example(1, True, (20, 30), True, TURNED, False)
@example(3, False, (20, 30), True, UPSIDE_DOWN, False)
@example(3, False, (60, 80), True, 7, False)
@example(3, True, (60, 20), True, 0, False)  # one side grows
@example(4, False, (20, 80), False, 0, False)
@example(1, True, (13, 70), True, 5, True)
def test_an_image_has_the_same_pixels_in_a_batch_and_alone(
    channels, interleaved, size, antialias, flip, labels
):
    picture = cv2.merge([pixels(channel, 90, 120, 1) for channel in range(channels)])
    picture = picture.reshape(90, 120, channels)
    window = picture[10:50, 20:70]
    expected = turned_scaled_and_flipped(window, size, antialias, flip, labels)
    if not interleaved:
        picture = np.ascontiguousarray(picture.transpose(2, 0, 1)).transpose(1, 2, 0)
        window = picture[10:50, 20:70]
    before = picture.copy()
    planes = np.full((channels, *expected.shape[:2]), 7, np.uint8)
    how = scaling.NEAREST if labels else [scaling.LINEAR, scaling.ANTIALIASED][antialias]
    scaling.scale_into(window, how, flip, planes)
    assert np.abs(planes.transpose(1, 2, 0).astype(int) - expected).max() <= 1
    alone = np.full(expected.shape, 7, np.uint8)
    scaling.scale_into(window, how, flip, alone, interleaved=True)
    assert np.array_equal(alone, planes.transpose(1, 2, 0))
    assert np.array_equal(picture, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling, "IS_PORTABLE", True)
        scaling.scale_into(window, how, flip, alone, interleaved=True)
        assert np.array_equal(alone, planes.transpose(1, 2, 0))
        patch.setattr(scaling, "find", lambda name: None)
        scaling.scale_into(window, how, flip, alone, interleaved=True)
    assert np.abs(alone.astype(int) - expected).max() <= 1


WINDOW = [10, 20, 30, 40, 0]  # top, left, height, width, flip


def boxes(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return scaling.moved_boxes(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


def points(*rows, window=WINDOW, size=None):
    windows = torch.tensor([window] * len(rows))
    return scaling.moved_points(torch.tensor(rows, dtype=torch.float32), windows, size).tolist()


@pytest.mark.parametrize(
    ("box", "flip", "size", "expected"),
    [
        pytest.param([25, 15, 35, 20], 0, None, [5, 5, 15, 10], id="inside"),
        pytest.param([0, 0, 30, 100], 0, None, [0, 0, 10, 30], id="clipped"),
        pytest.param([25, 15, 35, 20], 0, (60, 20), [2.5, 10, 7.5, 20], id="scaled"),
        pytest.param([25, 15, 35, 20], MIRRORED, None, [25, 5, 35, 10], id="mirrored"),
        pytest.param([25, 15, 35, 20], UPSIDE_DOWN, None, [5, 20, 15, 25], id="upside down"),
        pytest.param(
            [25, 15, 35, 20], MIRRORED | UPSIDE_DOWN, None, [25, 20, 35, 25], id="both flips"
        ),
    ],
)
def test_a_box_moves_with_its_window(box, flip, size, expected):
    assert boxes(box, window=[*WINDOW[:4], flip], size=size) == [expected]


CUT = [10, 20, 40, 80]  # top, left, height, width
SEEN, SIZE = (20, 20), (60, 200)


def test_predicted_boxes_go_back_to_where_they_came_from_and_are_clipped():
    there = torch.tensor([[25.0, 15.0, 60.0, 45.0]])
    seen = scaling.moved_boxes(there, torch.tensor([[*CUT, 0]]), SEEN)
    assert torch.allclose(scaling.boxes_in_image(seen, CUT, SEEN, SIZE), there)
    large = torch.tensor([[-100.0, -100.0, 500.0, 500.0]])
    assert scaling.boxes_in_image(large, CUT, SEEN, SIZE).tolist() == [[0, 0, 200, 60]]


def test_a_predicted_map_has_the_size_of_its_image_and_ignores_the_outside():
    result = scaling.map_in_image(np.array([[1, 2], [3, 4]], np.uint8), CUT, SIZE)
    assert result.shape == SIZE
    assert (result[10, 20], result[49, 99]) == (1, 4)
    assert result[9, 20] == result[10, 19] == IGNORE
    assert (result != IGNORE).sum() == 40 * 80


pytestmark = pytest.mark.skipif(
    scaling.turbojpeg() is None or find("paceline_decode_jpegs") is None,
    reason="needs a C compiler, and the extra 'turbo'",
)
HEIGHT, WIDTH = 90, 70
SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]


def encoded(height, width, subsampling="420", seed=0, **options):
    """Return a JPEG of noise over a smooth picture, written with ``options`` of Pillow."""
    noise = np.random.default_rng(seed).integers(-20, 20, (height, width, 3))
    image = (pixels(seed, height, width) + noise).clip(0, 255).astype(np.uint8)
    if subsampling == "Gray":
        gray = np.ascontiguousarray(image[:, :, :1])
        return simplejpeg.encode_jpeg(gray, colorspace="GRAY", colorsubsampling="Gray")
    if options:
        file = io.BytesIO()
        options = {"subsampling": {"444": 0, "422": 1, "420": 2}[subsampling], **options}
        Image.fromarray(image).save(file, "jpeg", quality=90, **options)
        return file.getvalue()
    return simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=subsampling)


@st.composite
def windows(draw):
    top, left = draw(st.integers(0, HEIGHT - 1)), draw(st.integers(0, WIDTH - 1))
    height, width = draw(st.integers(1, HEIGHT - top)), draw(st.integers(1, WIDTH - left))
    return [top, left, height, width, draw(st.integers(0, 7))]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(SUBSAMPLINGS), windows()), min_size=1, max_size=4),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_windows_of_a_slice_are_those_of_each_image(chosen, size, antialias, interleaved, channels):
    files = [encoded(HEIGHT, WIDTH, kind) for kind, _ in chosen]
    places = np.array([window for _, window in chosen])
    headers = scaling.read_headers(files)
    assert headers[:, scaling.SIZES].tolist() == [[HEIGHT, WIDTH]] * len(files)
    shape = (*size, channels) if interleaved else (channels, *size)
    results = np.zeros((len(files), *shape), np.uint8)
    scaling.decode_windows(headers, places, antialias, results, interleaved)
    assert not headers[:, scaling.LEFT].any()
    for file, window, result in zip(files, places.tolist(), results, strict=True):
        scaled = scaling.before_turn(window[4], size)
        own = window_pixels(file, read_header(file), channels, tuple(window), scaled)
        expected = np.zeros(shape, np.uint8)
        scaling.scale_into(own, antialias, window[4], expected, interleaved=interleaved)
        assert np.array_equal(result, expected)


def test_what_c_does_not_read_is_left_and_the_next_image_is_read():
    good, cut = encoded(HEIGHT, WIDTH), encoded(HEIGHT, WIDTH)[:900]
    files = [good, encode_png(np.zeros((3, 8, 8), np.uint8)), cut, golden.noted("jpeg", 6), good]
    headers = scaling.read_headers(files)
    assert headers[:, scaling.LEFT].tolist() == [0, 1, 0, 0, 0]
    assert headers[3, scaling.SIZES].tolist() == [32, 24]
    results = np.zeros((5, 3, 8, 8), np.uint8)
    scaling.decode_windows(headers, np.array([[0, 0, 8, 8, 0]] * 5), True, results, False)
    assert headers[:, scaling.LEFT].tolist() == [0, 1, 1, 1, 0]
    assert np.array_equal(results[0], results[4])
    assert results[0].any()


def compare(files):
    """Compare the headers that C reads with those that Python reads."""
    headers = scaling.read_headers(files)
    for number, file in enumerate(files):
        if headers[number, scaling.LEFT]:
            continue
        known = read_header(file)
        own = headers[number, scaling.STORED].tolist()
        assert own == [known.height, known.width, known.channels, known.orientation]
        assert (known.format, known.bit_depth) == ("jpeg", 8)


def check_mutated():
    whole = [encoded(20, 30), encoded(20, 30, "444", progressive=True)]
    whole += [golden.noted("jpeg", orientation) for orientation in range(1, 9)]
    compare(whole)
    assert not scaling.read_headers(whole)[:, scaling.LEFT].any()
    for data in whole:
        for files in (flips(data[:700], 300), truncations(data[:700], 100)):
            compare(list(files))


def test_headers_of_mutated_files_are_those_of_python():
    assert in_a_process(check_mutated) == 0


def test_a_damaged_file_is_refused_by_its_name_alone():
    headers = scaling.read_headers([b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00"])
    assert headers[:, scaling.LEFT].all()
    with pytest.raises(BadImage):
        read_header(b"\xff\xd8\xff\xe1\x00")
