import json
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.errors import ConfigError, DataError
from framework.input.function import FunctionInput
from framework.input.store import StoreInput
from framework.input.video import VideoInput
from framework.media.decode import decode
from framework.media.video_file import frames_of
from framework.pack.images import Preparation
from framework.pack.pack_store import pack
from framework.pack.packing import Packing
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter
from framework.store.open_store import open_store
from tests.contract.cases import jpeg
from tests.media.test_video_file import numbers_of, video

WRITERS = {"x.h5": HDF5Writer, "y.h5": HDF5Writer, "x.lmdb": LMDBWriter}
COUNTS = (5, 12, 8)


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
    frames = frames_of(store.read(torch.tensor([index]))["video"][0], field)
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
        FolderWriter("out", fields=folder().manifest.fields, num_records=1)
