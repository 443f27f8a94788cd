"""Videos and sounds from files to batches, through every part."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data import dali, hdf5, lmdb
from framework.data.reader import BatchReader, Request
from framework.errors import ConfigError, DataError
from framework.input.folder import FolderInput
from framework.input.function import FunctionInput
from framework.media.sound_video import joined_files, read_sound
from framework.pack import pack_store, packing, preparation
from framework.store import hdf5_store, lmdb_store
from framework.store.open_store import open_store
from framework.transform import flip, random_resized_crop, sound_window
from framework.transform.compose import ComposeTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.video_window import VideoWindow
from tests.conftest import make_context, write_store
from tests.contract.cases import WAYS, jpeg, micros
from tests.media.test_sound_video import numbers_of, sound
from tests.pack.test_preparation import packed, pixels_of

SOURCES = {"x.h5": hdf5.hdf5_source, "x.lmdb": lmdb.lmdb_source}
PAIR = VideoWindow(2, 1)  # of frames


def read(store, transform, training=True, epoch=0, **options):
    reader = BatchReader(store, make_context(transform=transform, **options))
    return reader(Request(epoch, torch.arange(3), training))


def clips_of(store, transform, **options):
    return read(store, transform, **options)["video"]


def frames(clip):
    return [frame.permute(1, 2, 0).numpy() for frame in clip]


@pytest.mark.parametrize(("path", "encode"), [("x.h5", "png"), ("x.lmdb", "raw")])
def test_a_clip_has_frames_of_its_video(path, encode):
    with closing(packed(path, encode=encode)) as store:
        clips = clips_of(store, VideoWindow(4, 2))
        assert (clips.shape, clips.dtype) == ((3, 4, 3, 32, 48), torch.uint8)
        for index, clip in enumerate(clips):
            whole = pixels_of(store, index)
            numbers = numbers_of(frames(clip))
            assert np.array_equal(frames(clip), [whole[number] for number in numbers])
            last = len(whole) - 1
            assert numbers == [min(numbers[0] + 2 * place, last) for place in range(4)]
        listed = clips_of(store, VideoWindow(4, 2), collate="list")
        assert all(map(torch.equal, listed, clips))
        middle = clips_of(store, VideoWindow(4, 2), training=False)
        expected = [[0, 2, 4, 4], [0, 2, 4, 6], [2, 4, 6, 8]]
        assert [numbers_of(frames(clip)) for clip in middle] == expected


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_stores_and_workers_give_the_same_clips(encode):
    crop = random_resized_crop.RandomResizedCrop([16, 12], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)
    transform = ComposeTransform({"clip": VideoWindow(4, 2), "crop": crop})
    batches = []
    for path, source in SOURCES.items():
        packed(path, encode=encode).close()
        for num, kind in WAYS if path == "x.h5" else WAYS[:1]:
            context = make_context(2, num, kind, transform=transform, seed=3)
            with closing(source(path, context=context)) as made:
                batches.append(micros(made, 1))
    assert all(batch == batches[0] for batch in batches[1:])


def test_transforms_that_cannot_cut_clips_are_refused():
    function = FunctionTransform(max, NoTransform(), False)
    with closing(packed()) as store:
        for transform in (NoTransform(), ComposeTransform({"flip": flip.FlipTransform(0.5, 0.0)})):
            with pytest.raises(ConfigError, match=r"C262.*which frames of video.*=video_window"):
                BatchReader(store, make_context(transform=transform))
        composed = ComposeTransform({"clip": PAIR, "function": function})
        with pytest.raises(ConfigError, match=r"C262.*a function changes images"):
            BatchReader(store, make_context(transform=composed))
    with pytest.raises(ValueError, match="a and b both cut clips"):
        ComposeTransform({"a": VideoWindow(2, 1), "b": VideoWindow(2, 1)})
    with pytest.raises(ConfigError, match=r"C174.*video"):
        dali.dali_source("x.h5", 2, context=make_context(transform=PAIR))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\0\0\0\x20ftypisom a video file", "does not hold frames"),
        (joined_files([b"no image"] * 3), "not a readable image"),
        (joined_files([jpeg(0)[:200]] * 3), "not a readable image"),
    ],
    ids=["a video file", "text", "truncated"],
)
def test_a_damaged_video_is_named(value, words):
    fields = {"video": Field("uint8", (None, None, None, 3), "frames"), "label": Field("int64", ())}
    path = write_store("bad.h5", {"video": [value], "label": np.zeros(1, np.int64)}, fields)
    source = hdf5.hdf5_source(path, context=make_context(transform=PAIR))
    with closing(source), pytest.raises(DataError, match=f"D(261|106).*record 0.*{words}"):
        next(source.batches(0))


LENGTHS = (800, 1200, 300)
WRITERS = {"x.h5": hdf5_store.HDF5Writer, "x.lmdb": lmdb_store.LMDBWriter}


def sounds(channels=1, rates=(8000, 8000, 8000)):
    """Write a folder of three sounds in two classes and two formats, and return its input."""
    for number, (length, rate) in enumerate(zip(LENGTHS, rates, strict=True)):
        path = Path(f"sounds/{'ab'[number % 2]}/{number}.{'wav' if number else 'flac'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sound(length, rate, channels, "WAV" if number else "FLAC"))
    return FolderInput("sounds", None, None)


def packed_sounds(path="x.h5", source=None, **options):
    source = source or sounds()
    prepare = preparation.Preparation(**options)
    pack_store.pack(packing.Packing(source, WRITERS[path], path, prepare, suffix=Path(path).suffix))
    return open_store(path)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_window_of_each_sound_is_cut(channels):
    window = sound_window.SoundWindow(400)
    with closing(packed_sounds(source=sounds(channels))) as store:
        batch = read(store, window)
        middle = read(store, window, training=False)["audio"]
        other = read(store, window, epoch=1)["audio"]
    assert list(batch["audio"].shape) == [3, 400, *[2] * (channels - 1)]
    assert "audio_length" not in batch
    assert not batch["audio"][1, 300:].any()
    whole = read_sound(sound(1200, channels=channels))
    assert np.array_equal(middle[2], whole[400:800])
    assert not torch.equal(batch["audio"][2], other[2])
    assert any(np.array_equal(batch["audio"][2], whole[n : n + 400]) for n in range(801))


def test_other_rates_and_channels_are_refused_and_rates_can_become_one():
    source = sounds(rates=(8000, 16000, 8000))
    with pytest.raises(DataError, match=r"D180.*1\.wav: audio.*16000.*add pack\.rate=8000"):
        packed_sounds(source=source)
    with closing(packed_sounds(source=source, rate=16000)) as store:
        assert read(store, NoTransform())["audio_length"].tolist() == [1600, 600, 1200]
        assert store.manifest.options["rate"] == 16000
    files = [sound(channels=1), sound(channels=2)]
    mixed = FunctionInput("f", lambda item: {"audio": files[item]}, None, 2, None)
    with pytest.raises(DataError, match=r"D180.*2 channels, the first has 1"):
        packed_sounds(source=mixed)


@pytest.mark.parametrize(
    "data",
    [b"fLaC", sound()[:900], sound(kind="FLAC")[:-9], sound(kind="FLAC")[:400] + b"x" * 400],
    ids=["start", "wav", "flac", "damaged"],
)
def test_a_damaged_sound_is_named_when_it_is_packed(data):
    source = sounds()
    Path("sounds/a/1.wav").write_bytes(data)
    with pytest.raises(DataError, match=r"D181.*sounds/a/1\.wav: audio: "):
        packed_sounds(source=source)
