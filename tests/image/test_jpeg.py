import io
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from framework.image import jpeg
from framework.image.jpeg import Region, decode_region
from tests.contract.cases import pixels
from tests.store.fuzz import flips, in_a_process, truncations

SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]
needs_library = pytest.mark.skipif(jpeg.find() is None, reason="the extra 'turbo' is not installed")


def encoded(height, width, subsampling="420", seed=0, **options):
    """Return a JPEG of noise over a smooth picture.

    ``options`` are those of Pillow (progressive, restart markers).
    """
    noise = np.random.default_rng(seed).integers(-20, 20, (height, width, 3))
    image = (pixels(seed, height, width) + noise).clip(0, 255).astype(np.uint8)
    if subsampling == "Gray":
        return simplejpeg.encode_jpeg(
            np.ascontiguousarray(image[:, :, :1]), colorspace="GRAY", colorsubsampling="Gray"
        )
    if options:
        file = io.BytesIO()
        Image.fromarray(image).save(
            file,
            "jpeg",
            quality=90,
            subsampling={"444": 0, "422": 1, "420": 2}[subsampling],
            **options,
        )
        return file.getvalue()
    return simplejpeg.encode_jpeg(image, quality=90, colorsubsampling=subsampling)


def whole(data, channels, denominator, height, width):
    """Return the whole image at a scale of 1/``denominator``, decoded by simplejpeg."""
    least = (-(-height // denominator), -(-width // denominator)) if denominator > 1 else (0, 0)
    form = "RGB" if channels == 3 else "GRAY"
    return simplejpeg.decode_jpeg(data, colorspace=form, min_height=least[0], min_width=least[1])


def _same(data, channels, region, height, width):
    top, left, high, wide, denominator = region
    expected = whole(data, channels, denominator, height, width)[
        top : top + high, left : left + wide
    ]
    return np.array_equal(decode_region(data, channels, region), expected)


@st.composite
def regions(draw, height, width):
    d = draw(
        st.sampled_from([1, 2, 4, 8] if min(height, width) > 16 else [1])
    )  # smaller: simplejpeg's choice is another
    high, wide = -(-height // d), -(-width // d)
    top, left = draw(st.integers(0, high - 1)), draw(st.integers(0, wide - 1))
    return Region(top, left, draw(st.integers(1, high - top)), draw(st.integers(1, wide - left)), d)


@needs_library
def test_a_damaged_file_does_not_change_how_the_next_one_is_decoded():
    file, region = encoded(40, 56), Region(3, 5, 20, 17, 1)
    expected = decode_region(file, 3, region).copy()
    draw = np.random.default_rng(0)
    num_damaged = 0
    for _ in range(200):
        damaged = bytearray(file)
        damaged[draw.integers(2, 600)] = draw.integers(256)
        num_damaged += decode_region(bytes(damaged), 3, region) is None
        assert np.array_equal(decode_region(file, 3, region), expected)
    assert num_damaged > 10


@needs_library
@settings(max_examples=400)
@given(
    st.integers(1, 130),
    st.integers(1, 130),
    st.sampled_from(SUBSAMPLINGS),
    st.sampled_from([1, 3]),
    st.data(),
)
def test_a_region_has_exactly_the_pixels_of_decoding_all_and_cutting(
    height, width, subsampling, channels, data
):
    file = encoded(height, width, subsampling)
    assert _same(file, channels, data.draw(regions(height, width)), height, width)


@needs_library
@settings(max_examples=100)
@given(
    st.sampled_from(["444", "422", "420"]),
    st.sampled_from([{"progressive": True}, {"restart_marker_blocks": 3}]),
    st.data(),
)
def test_progressive_files_and_restart_markers_are_no_exception(subsampling, options, data):
    file = encoded(97, 121, subsampling, **options)
    assert _same(file, 3, data.draw(regions(97, 121)), 97, 121)


@needs_library
@pytest.mark.parametrize("mode", ["CMYK"])
def test_colors_it_cannot_convert_are_left_to_others(mode):
    file = io.BytesIO()
    Image.fromarray(np.zeros((20, 20, 4), np.uint8), mode).save(file, "jpeg")
    assert decode_region(file.getvalue(), 3, Region(0, 0, 20, 20, 1)) is None


def _judge(files):
    """Check that each damaged file gives None, or pixels of the requested shape."""
    for data in files:
        result = decode_region(data, 3, Region(5, 3, 40, 50, 1))
        assert result is None or result.shape == (40, 50, 3)


@needs_library
def test_damage_never_crashes():
    file = encoded(80, 90)
    assert (
        in_a_process(
            _judge, [*flips(file, 1500), *flips(file, 500, 0, 300, seed=1), *truncations(file, 300)]
        )
        == 0
    )


@needs_library
def test_text_and_nothing_are_no_jpeg():
    assert [
        decode_region(data, 3, Region(0, 0, 1, 1, 1)) for data in (b"text", b"", b"\xff\xd8\xff")
    ] == [None] * 3


@needs_library
def test_memory_of_a_thread_is_used_again():
    first = decode_region(encoded(64, 64, seed=1), 3, Region(0, 0, 64, 64, 1))
    copy = first.copy()
    decode_region(encoded(64, 64, seed=2), 3, Region(0, 0, 64, 64, 1))
    assert not np.array_equal(first, copy)


@needs_library
def test_the_library_is_found_once():
    assert jpeg.find() is jpeg.find()
    assert any("turbojpeg" in Path(name).name for name in jpeg._candidates())
