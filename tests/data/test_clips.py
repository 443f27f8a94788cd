"""Videos from files to clips and to a trained model, through every part."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.config.auto import _Data
from framework.config.declared_inputs import NOTHING
from framework.contracts.records import Field
from framework.data.dali import dali_source
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.data.reader import BatchReader, Request
from framework.errors import ConfigError, DataError
from framework.transform.center_crop import CenterCrop
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.rotate import Rotate
from framework.transform.video_window import VideoWindow
from framework.video.frame_files import joined_files
from tests.cli.command import is_one_error_line, losses, paceline
from tests.conftest import make_context, write_store
from tests.contract.cases import jpeg, micros
from tests.pack.test_video_frames import folder, packed, pixels_of
from tests.video.test_video_file import numbers_of

SOURCES = {"x.h5": hdf5_source, "x.lmdb": lmdb_source}
WAYS = [(0, "thread"), (2, "thread"), (2, "process")]
CROP = ComposeTransform(
    {
        "clip": VideoWindow(4, 2),
        "crop": RandomResizedCrop([16, 12], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True),
    }
)


def _read(store, transform, training=True, epoch=0, **options):
    reader = BatchReader(store, make_context(transform=transform, **options))
    return reader(Request(epoch, torch.arange(3), training))["video"]


def _frames(clip):
    return [frame.permute(1, 2, 0).numpy() for frame in clip]


@pytest.mark.parametrize("path", SOURCES)
@pytest.mark.parametrize("encode", ["png", "raw"])
def test_a_clip_has_frames_of_its_video(path, encode):
    store = packed(path, encode=encode)
    clips = _read(store, VideoWindow(4, 2))
    assert (clips.shape, clips.dtype) == ((3, 4, 3, 32, 48), torch.uint8)
    for index, clip in enumerate(clips):
        whole = pixels_of(store, index)
        numbers = numbers_of(_frames(clip))
        assert np.array_equal(_frames(clip), [whole[number] for number in numbers])
        last = len(whole) - 1
        assert numbers == [min(numbers[0] + 2 * place, last) for place in range(4)]
    middle = _read(store, VideoWindow(4, 2), training=False)
    assert [numbers_of(_frames(clip)) for clip in middle] == [
        [0, 2, 4, 4],
        [0, 2, 4, 6],
        [2, 4, 6, 8],
    ]
    store.close()


def test_the_window_depends_on_seed_epoch_and_record_alone():
    store = packed(encode="raw")
    window = VideoWindow(2, 1)
    clips = [_read(store, window, epoch=epoch) for epoch in range(20)]
    assert len({tuple(numbers_of(_frames(clip[2]))) for clip in clips}) > 5
    assert torch.equal(clips[3], _read(store, window, epoch=3))
    reader = BatchReader(store, make_context(transform=window))
    alone = reader(Request(3, torch.tensor([2]), training=True))["video"]
    assert torch.equal(alone[0], clips[3][2])
    reader.seed = 1
    others = [reader(Request(epoch, torch.arange(3), training=True)) for epoch in range(20)]
    assert not torch.equal(torch.stack(clips), torch.stack([batch["video"] for batch in others]))
    store.close()


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_all_frames_of_a_clip_are_cut_and_flipped_alike(encode):
    store = packed(encode=encode)
    turned = ComposeTransform({"clip": VideoWindow(6, 1), "turn": Rotate([1, 3])})
    halves = set()
    for epoch in range(6):
        clips = _read(store, turned, epoch=epoch)
        assert clips.shape == (3, 6, 3, 48, 32)
        for clip in clips.float():  # the bright left half is now above or below
            difference = clip[:, :, :20].mean((1, 2, 3)) - clip[:, :, 28:].mean((1, 2, 3))
            assert len(set((difference > 0).tolist())) == 1
            halves.add(bool(difference[0] > 0))
    assert halves == {True, False}
    store.close()


def test_cropping_a_clip_is_cropping_its_frames():
    store = packed(encode="png")
    crop = CenterCrop([16, 12], 20, True)
    clips = _read(store, ComposeTransform({"clip": VideoWindow(3, 1), "crop": crop}))
    whole = _read(store, VideoWindow(3, 1))
    path = write_store(
        "frames.h5",
        {"image": whole.flatten(0, 1).numpy(), "label": np.zeros(9, np.int64)},
        {"image": Field("uint8", (3, 32, 48)), "label": Field("int64", ())},
    )
    frames = hdf5_source(path, context=make_context(9, transform=crop, training=False))
    assert torch.equal(next(frames.batches(0)).batch["image"].unflatten(0, (3, 3)), clips)
    frames.close()
    store.close()


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_stores_and_workers_give_the_same_batches(encode):
    batches = []
    for path, source in SOURCES.items():
        packed(path, encode=encode).close()
        for num, kind in WAYS:
            context = make_context(2, num, kind, transform=CROP, seed=3)
            made = source(path, context=context)
            batches.append(micros(made, 1))
            made.close()
    assert all(batch == batches[0] for batch in batches[1:])


def test_videos_of_several_sizes_are_a_list():
    source = folder(((32, 48), (32, 48), (48, 32)))
    store = packed(source=source)
    with pytest.raises(DataError, match="D107"):
        _read(store, VideoWindow(2, 1))
    listed = _read(store, VideoWindow(2, 1), collate="list")
    assert [tuple(clip.shape) for clip in listed] == [
        (2, 3, 32, 48),
        (2, 3, 48, 32),
        (2, 3, 32, 48),
    ]
    assert _read(store, CROP).shape == (3, 4, 3, 16, 12)
    store.close()


def test_what_cannot_cut_clips_is_refused():
    store = packed()
    for transform in (NoTransform(), ComposeTransform({"flip": FlipTransform(0.5, 0.0)})):
        with pytest.raises(ConfigError, match=r"C262.*which frames of video.*=video_window"):
            BatchReader(store, make_context(transform=transform))
    function = FunctionTransform(max, NoTransform(), False)
    composed = ComposeTransform({"clip": VideoWindow(2, 1), "function": function})
    with pytest.raises(ConfigError, match=r"C262.*a function changes images"):
        BatchReader(store, make_context(transform=composed))
    with pytest.raises(ValueError, match="a and b both cut clips"):
        ComposeTransform({"a": VideoWindow(2, 1), "b": VideoWindow(2, 1)})
    store.close()
    with pytest.raises(ConfigError, match=r"C174.*video"):
        dali_source("x.h5", 2, context=make_context(transform=VideoWindow(2, 1)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "does not hold frames"),
        (b"\0\0\0\x20ftypisom a video file", "does not hold frames"),
        (joined_files([b"no image"] * 3), "not a readable image"),
        (joined_files([jpeg(0)[:200]] * 3), "not a readable image"),
    ],
)
def test_a_damaged_record_is_named(value, words):
    fields = {"video": Field("uint8", (None, None, None, 3), "frames"), "label": Field("int64", ())}
    records = {"video": [value], "label": np.zeros(1, np.int64)}
    source = hdf5_source(
        write_store("bad.h5", records, fields),
        context=make_context(transform=VideoWindow(2, 1)),
    )
    with pytest.raises(DataError, match=f"D(261|106).*record 0.*{words}"):
        next(source.batches(0))
    source.close()


def test_the_data_tells_channels_and_statistics():
    packed(encode="raw", color="gray").close()
    source = hdf5_source("x.h5", context=make_context(transform=VideoWindow(2, 1)))
    config = {"data": {"train": "x.h5"}, "objective": {"input": "video"}}
    data = _Data(config, source, NOTHING)
    assert data.channels("video") == 1
    assert data.statistics("video") == source.manifest.statistics["video"]
    middles = np.stack(
        [pixels_of(source.store, index)[n // 2] for index, n in enumerate((5, 8, 12))]
    )
    assert data.statistics("video").mean[0] == pytest.approx(middles.mean() / 255, rel=1e-4)
    source.close()


NET = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, in_channels, num_classes):
        layers = nn.Conv3d(in_channels, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()
        super().__init__(*layers, nn.Linear(4, num_classes))

    def forward(self, clips):
        return super().forward(clips.transpose(1, 2))
"""


@pytest.mark.slow
def test_a_small_net_learns_from_clips():
    folder()
    Path("net.py").write_text(NET)
    words = ["input=video", "input.path=videos", "pack.size=[24,32]", "pack.encode=jpeg"]
    assert paceline("pack", *words, "output.path=x.h5").code == 0
    train = [
        *("train", "data.train=x.h5", "data.val=x.h5", "objective.input=video", "batch_size=2"),
        *("model=null", "+model._target_=net.Net", "+model.in_channels=auto"),
        *("+model.num_classes=auto", "allow_targets=[net]", "augment=normalize"),
        *("augment.field=video", "epochs=2", "transform=video_window", "transform.frames=6"),
    ]
    for run, more in {"one": [], "two": ["workers.num=2", "workers.kind=process"]}.items():
        assert paceline(*train, *more, f"hydra.run.dir={run}").code == 0
    assert losses(Path("one")) == losses(Path("two"))
    assert json.loads(Path("one/summary.json").read_text())["val"]["loss"] < 10
    for augment in ("cutmix", "random_erasing", "color_jitter", "crop_flip"):
        done = paceline(*train, f"augment={augment}", f"hydra.run.dir={augment}")
        assert is_one_error_line(done, "C118"), done.err
    assert is_one_error_line(paceline(*train[:-2], "transform=none"), "C262")
