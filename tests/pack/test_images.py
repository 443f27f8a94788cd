import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Chunk, Field, Manifest
from framework.errors import ConfigError, DataError
from framework.media.decode import decode, decode_deep, encode_png
from framework.media.header import read_header
from framework.pack.images import Preparation
from tests.contract.cases import IMAGE_FIELDS, jpeg, pixels
from tests.media.test_golden_pixels import ACCEPTED, DEEP, saved


class Items:
    """A RecordInput of these records, one to an item."""

    def __init__(self, images, fields=IMAGE_FIELDS, **others):
        self.records = {"image": images, **others, "label": np.arange(len(images))}
        self.manifest = Manifest(len(images), fields, source="a test")

    def read(self, start, stop):
        keys = [self.name(index) for index in range(start, stop)]
        return Chunk({name: values[start:stop] for name, values in self.records.items()}, keys)

    def name(self, index):
        return f"{index}.jpg"


def prepared(source, **options):
    """Return the fields, and the whole chunk as another process would make it."""
    preparation = Preparation(**options)
    fields = preparation.fields(source)
    return fields, pickle.loads(pickle.dumps(preparation))(
        source.read(0, source.manifest.num_records)
    )


def png(seed, height=16, width=12, channels=3):
    return encode_png(pixels(seed, height, width, channels).transpose(2, 0, 1))


def array_fields(*shape):
    return {"image": Field("uint8", shape), "label": Field("int64", ())}


def test_kept_bytes_are_the_files_own():
    files = [jpeg(0), png(1), ACCEPTED["EXIF 6"]]
    fields, chunk = prepared(Items(files), encode="keep")
    assert fields == IMAGE_FIELDS
    assert chunk.records["image"] == files
    assert chunk.records["label"].tolist() == [0, 1, 2]
    assert chunk.keys == ["0.jpg", "1.jpg", "2.jpg"]


@pytest.mark.parametrize("encode", ["keep", "raw"])
@pytest.mark.parametrize("bad", [b"text", jpeg(0, 200, 300)[:-2000], png(0)[:-20]])
def test_a_bad_image_is_named_by_its_key_whatever_becomes_of_it(encode, bad):
    source = Items([jpeg(0), bad])
    with pytest.raises(
        DataError,
        match=r"D106\]: 1\.jpg: image is not a readable image \(.+\); correct or remove it",
    ):
        prepared(source, encode=encode)


@pytest.mark.parametrize("name", ["png palette", "webp EXIF 6", "CMYK"])
def test_raw_pixels_are_those_of_the_one_rule(name):
    data = ACCEPTED[name]
    fields, chunk = prepared(Items([data, data]), encode="raw")
    expected = decode(data, 3).transpose(2, 0, 1)
    assert fields["image"] == Field("uint8", expected.shape)
    assert chunk.records["image"].flags.c_contiguous
    assert np.array_equal(chunk.records["image"], [expected, expected])


def test_png_keeps_the_pixels_and_jpeg_nearly():
    files = [jpeg(0, 40, 50), png(1, 30, 20)]
    for encode, most in (("png", 0), ("jpeg", 4)):
        fields, chunk = prepared(Items(files), encode=encode)
        assert fields == IMAGE_FIELDS
        for old, new in zip(files, chunk.records["image"], strict=True):
            assert read_header(new).format == encode
            assert np.abs(decode(new, 3).astype(int) - decode(old, 3)).mean() <= most


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"resize": 100}, (150, 100)),
        ({"resize": 1000}, (300, 200)),
        ({"max_side": 100}, (100, 67)),
        ({"max_side": 1}, (1, 1)),
        ({"size": [400, 100]}, (400, 100)),
    ],
)
def test_images_get_the_size_that_was_asked_for(options, size):
    for encode in ("png", "raw"):
        fields, chunk = prepared(Items([jpeg(0, 300, 200)]), encode=encode, **options)
        result = chunk.records["image"][0]
        assert (result.shape[1:] if encode == "raw" else read_header(result).size) == size
        assert fields["image"].shape == ((3, *size) if encode == "raw" else (3, None, None))


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 500))
def test_the_shorter_side_gets_exactly_the_pixels_and_the_shape_stays(height, width, shorter):
    scaled = Preparation(encode="jpeg", resize=shorter).scaled_size((height, width))
    assert min(scaled) == min(height, width, shorter)
    assert abs(scaled[0] * width - scaled[1] * height) <= max(height, width)
    longest = Preparation(encode="jpeg", max_side=shorter).scaled_size((height, width))
    assert max(longest) == min(max(height, width), shorter)


def test_raw_images_of_different_shapes_are_named_with_what_to_do():
    with pytest.raises(
        DataError,
        match=r"D107\]: 1\.jpg: image is 3x20x12, the first 3x16x12; "
        r"set pack\.size=\[height,width\]",
    ):
        prepared(Items([jpeg(0), jpeg(1, 20, 12)]), encode="raw")


def test_color_is_that_of_the_first_image_unless_it_is_given():
    files = [jpeg(0), png(1)]
    for color, channels in (("gray", 1), ("rgb", 3), (None, 3)):
        for encode in ("keep", "jpeg", "png", "raw"):
            fields, chunk = prepared(Items(files), encode=encode, color=color)
            assert fields["image"].shape[0] == channels
            if encode in ("jpeg", "png"):
                assert [read_header(data).colors for data in chunk.records["image"]] == [
                    channels
                ] * 2
    gray = {**IMAGE_FIELDS, "image": Field("uint8", (1, None, None), "image")}
    chunk = prepared(Items(files, gray), encode="raw", color="gray")[1]
    assert chunk.records["image"].shape == (2, 1, 16, 12)


@pytest.mark.parametrize("encode", ["keep", "jpeg", "png", "raw"])
def test_an_image_in_color_does_not_become_gray_because_a_sample_is(encode):
    gray_rgb = encode_png(np.repeat(pixels(1, channels=1), 3, axis=2).transpose(2, 0, 1))
    fields = {**IMAGE_FIELDS, "image": Field("uint8", (1, None, None), "image")}
    source = Items([png(0, channels=1), gray_rgb], fields)
    assert prepared(source, encode=encode)[0]["image"].shape[0] == 1
    source = Items([png(0, channels=1), jpeg(1)], fields)
    with pytest.raises(DataError, match=r"D122\]: 1\.jpg: an image in color, .*pack\.color=gray"):
        prepared(source, encode=encode)
    # a store is gray because somebody said so, or all its images have been looked at
    source.manifest = Manifest(2, fields, source="a store", options={"encode": "keep"})
    assert len(prepared(source, encode=encode)[1].keys) == 2


def test_sixteen_bits_become_eight_or_stay():
    deep, shallow = saved(DEEP, "png"), png(0, 24, 32, 1)
    source = Items(
        [deep, shallow], {**IMAGE_FIELDS, "image": Field("uint8", (1, None, None), "image")}
    )
    fields, chunk = prepared(source, encode="raw", bit_depth=16)
    assert fields["image"] == Field("uint16", (1, 24, 32))
    assert np.array_equal(
        chunk.records["image"],
        [decode_deep(data, 1).transpose(2, 0, 1) for data in (deep, shallow)],
    )
    _, chunk = prepared(source, encode="raw", bit_depth=8)
    assert np.array_equal(chunk.records["image"][0][0], np.round(np.asarray(DEEP) / 257))


def test_arrays_that_are_images_are_scaled_and_encoded():
    source = Items(
        np.stack([pixels(n).transpose(2, 0, 1) for n in range(3)]), array_fields(3, 16, 12)
    )
    fields, chunk = prepared(source, encode="raw", size=[8, 6])
    assert fields["image"] == Field("uint8", (3, 8, 6))
    assert chunk.records["image"].shape == (3, 3, 8, 6)
    fields, chunk = prepared(source, encode="png")
    assert fields == IMAGE_FIELDS
    assert np.array_equal(decode(chunk.records["image"][2], 3), pixels(2))
    fields, chunk = prepared(source, encode="raw", color="gray", bit_depth=16)
    assert (fields["image"], chunk.records["image"].dtype) == (
        Field("uint16", (1, 16, 12)),
        np.uint16,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encode", "gif"),
        ("resize", 0),
        ("size", [3, 0]),
        ("quality", 101),
        ("color", "bgr"),
        ("bit_depth", 12),
        ("max_pixels", 1 << 40),
    ],
)
def test_a_value_that_cannot_be_is_named(name, value):
    with pytest.raises(ConfigError, match=rf"C140\]: pack\.{name} = "):
        Preparation(**{"encode": "jpeg", name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"encode": "jpeg", "resize": 9, "max_side": 9},
        {"encode": "keep", "size": [9, 9]},
        {"encode": "png", "bit_depth": 16},
        {"encode": "png", "quality": 80},
    ],
)
def test_what_would_be_ignored_is_an_error(options):
    with pytest.raises(
        ConfigError, match=r"C141\]: pack\.\w+ = .+, pack\.\w+ = .+: one excludes the other; "
    ):
        Preparation(**options)
