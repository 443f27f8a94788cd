import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Chunk, Field, Manifest
from framework.errors import ConfigError, DataError
from framework.input.function import FunctionInput
from framework.input.store import StoreInput
from framework.input.video import VideoInput
from framework.media import header, sound_video
from framework.media.decode import decode, decode_deep, encode_png
from framework.pack.pack_store import pack
from framework.pack.packing import Packing
from framework.pack.preparation import Preparation
from framework.store import folder_store, lmdb_store
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, pixels
from tests.media.test_golden_pixels import ACCEPTED, DEEP, saved
from tests.media.test_sound_video import numbers_of, video

WRITERS = {"x.h5": HDF5Writer, "y.h5": HDF5Writer, "x.lmdb": lmdb_store.LMDBWriter}
COUNTS = (5, 12, 8)


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
    sent = pickle.loads(pickle.dumps(preparation))
    return fields, sent(source.read(0, source.manifest.num_records))


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
            assert header.read_header(new).format == encode
            assert np.abs(decode(new, 3).astype(int) - decode(old, 3)).mean() <= most


@pytest.mark.parametrize(
    ("options", "size"),
    [
        *(({"resize": 100}, (150, 100)), ({"resize": 1000}, (300, 200))),
        *(({"max_side": 100}, (100, 67)), ({"max_side": 1}, (1, 1))),
        ({"size": [400, 100]}, (400, 100)),
    ],
)
def test_images_get_the_size_that_was_asked_for(options, size):
    for encode in ("png", "raw"):
        fields, chunk = prepared(Items([jpeg(0, 300, 200)]), encode=encode, **options)
        result = chunk.records["image"][0]
        assert (result.shape[1:] if encode == "raw" else header.read_header(result).size) == size
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
                assert [header.read_header(data).colors for data in chunk.records["image"]] == [
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
    assert fields["image"] == Field("uint16", (1, 16, 12))
    assert chunk.records["image"].dtype == np.uint16


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("encode", "gif"), ("resize", 0), ("size", [3, 0]), ("quality", 101), ("color", "bgr")),
        *(("bit_depth", 12), ("max_pixels", 1 << 40)),
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


# -------------------------------------------------------------------------------------- videos


def folder(sizes=((32, 48),) * 3):
    """Write a folder of three videos in two classes and three formats, and return its input."""
    for number, (count, size) in enumerate(zip(COUNTS, sizes, strict=True)):
        form, suffix = [("mp4", "mp4"), ("matroska", "mkv"), ("avi", "avi")][number]
        codec = "mpeg4" if form == "avi" else "libx264"
        path = Path(f"videos/{'ab'[number % 2]}/{number}.{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(video(count, size, form=form, codec=codec))
    return VideoInput("videos", None, None)


def packed(path="x.h5", source=None, num_workers=0, on_error="fail", **options):
    """Pack the videos of a folder, and return the opened store."""
    source = source or folder()
    prepare = Preparation(**options)
    suffix = Path(path).suffix
    packing = Packing(source, WRITERS[path], path, prepare, on_error, suffix=suffix)
    pack(packing, num_workers)
    return open_store(path)


def pixels_of(store, index=0):
    """Return the frames of a record, decoded."""
    field = store.manifest.fields["video"]
    frames = sound_video.frames_of(store.read(torch.tensor([index]))["video"][0], field)
    if isinstance(frames, np.ndarray):
        return list(frames)
    return [decode(frame, field.shape[3]) for frame in frames]


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
@pytest.mark.parametrize("encode", ["keep", "jpeg", "png", "raw"])
def test_frames_are_stored_in_order(path, encode):
    store = packed(path, encode=encode)
    size = (32, 48) if encode == "raw" else (None, None)
    assert store.manifest.fields["video"].shape == (None, *size, 3)
    assert [numbers_of(pixels_of(store, index)) for index in range(3)] == [
        list(range(count)) for count in (5, 8, 12)
    ]
    assert store.manifest.class_counts == [2, 1]
    assert len(store.manifest.statistics["video"].mean) == 3
    store.close()


def test_frames_are_scaled_and_gray_and_taken_at_a_rate():
    store = packed(encode="raw", size=[16, 20], color="gray", frame_rate=12.5)
    assert store.manifest.fields["video"].shape == (None, 16, 20, 1)
    assert store.manifest.options["frame_rate"] == 12.5
    assert [len(pixels_of(store, index)) for index in range(3)] == [3, 4, 6]
    assert numbers_of(pixels_of(store, 2)) == [0, 2, 4, 6, 8, 10]
    store.close()


def test_bad_files_are_named_or_skipped():
    source = folder()
    Path("videos/a/1.mp4").write_bytes(b"a text")
    webm = video(30, form="webm", codec="libvpx-vp9")
    Path("videos/a/3.webm").write_bytes(webm[: len(webm) // 2])
    Path("videos/b/4.mov").write_bytes(b"")
    with pytest.raises(DataError, match=r"D260.: videos/a/1\.mp4: video is not a readable video"):
        packed(source=source)
    for encode in ("jpeg", "raw"):
        store = packed(source=source, on_error="skip", encode=encode)
        assert store.manifest.num_records == 3
        bad = [json.loads(line) for line in Path("x.h5.bad.jsonl").read_text().splitlines()]
        assert [Path(line["name"]).name for line in bad] == ["1.mp4", "3.webm", "4.mov"]
        store.close()


@pytest.mark.parametrize(("first", "then"), [("jpeg", "raw"), ("raw", "jpeg"), ("png", "keep")])
def test_a_store_can_be_packed_again(first, then):
    packed("x.h5", encode=first).close()
    store = packed("y.h5", StoreInput("x.h5"), encode=then)
    assert [numbers_of(pixels_of(store, index))[-1] for index in range(3)] == [4, 7, 11]
    store.close()
    with pytest.raises(DataError, match=r"D260.*packed frames have no times"):
        packed("y.h5", StoreInput("x.h5"), encode="png", frame_rate=5)


def test_options_that_videos_do_not_have_are_refused():
    with pytest.raises(ConfigError, match=r"C262.: pack\.bit_depth = 8: .*8 bits"):
        packed(encode="png", bit_depth=8)
    images = FunctionInput("f", lambda _: {"image": jpeg(0)}, None, 1, None)
    with pytest.raises(ConfigError, match=r"C142.: pack\.frame_rate = 5.*no field .* is a video"):
        packed(source=images, frame_rate=5)
    with pytest.raises(ConfigError, match=r"C140.: pack\.frame_rate = 0"):
        packed(frame_rate=0)
    with pytest.raises(DataError, match="D114"):
        folder_store.FolderWriter("out", fields=folder().manifest.fields, num_records=1)
