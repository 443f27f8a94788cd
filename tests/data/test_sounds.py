"""Sounds from files to batches, through every part."""

from pathlib import Path

import numpy as np
import pytest
import torch

from framework.data.hdf5 import hdf5_source
from framework.data.reader import BatchReader, Request
from framework.errors import DataError
from framework.input.folder import FolderInput
from framework.input.function import FunctionInput
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packing
from framework.pack.images import Preparation
from framework.sound.sound_file import read_sound
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter
from framework.store.open_store import open_store
from framework.transform.none import NoTransform
from framework.transform.sound_window import SoundWindow
from tests.conftest import make_context
from tests.sound.test_sound_file import sound

LENGTHS = (800, 1200, 300)
WRITERS = {"x.h5": HDF5Writer, "x.lmdb": LMDBWriter}


def _folder(channels=1, rates=(8000, 8000, 8000)):
    for number, (length, rate) in enumerate(zip(LENGTHS, rates, strict=True)):
        folder = Path(f"sounds/{'ab'[number % 2]}")
        folder.mkdir(parents=True, exist_ok=True)
        kind = "WAV" if number else "FLAC"
        data = sound(length, rate, channels, kind)
        (folder / f"{number}.{kind.lower()}").write_bytes(data)
    return FolderInput("sounds", None, None)


def _store(path="x.h5", source=None, **options):
    source = source or _folder()
    packing = Packing(source, WRITERS[path], path, Preparation(**options), suffix=Path(path).suffix)
    pack(packing)
    return open_store(path)


def _read(store, transform, training=True, epoch=0, **options):
    reader = BatchReader(store, make_context(transform=transform, **options))
    return reader(Request(epoch, torch.arange(3), training))


@pytest.mark.parametrize("path", WRITERS)
def test_files_are_kept_as_they_are(path):
    store = _store(path)
    assert store.manifest.fields["audio"].kind == "audio"
    assert store.manifest.options["rate"] == 8000
    files = store.read(torch.arange(3))["audio"].arrays()
    assert [bytes(file) for file in files] == [
        sound(800, kind="FLAC"),
        sound(300),
        sound(1200),
    ]
    store.close()


@pytest.mark.parametrize("channels", [1, 2])
def test_whole_sounds_are_padded(channels):
    store = _store(source=_folder(channels))
    batch = _read(store, NoTransform())
    rest = [2] * (channels - 1)
    assert list(batch["audio"].shape) == [3, 1200, *rest]
    assert batch["audio_length"].tolist() == [800, 300, 1200]
    assert np.array_equal(batch["audio"][1, :300], read_sound(sound(300, channels=channels)))
    assert not batch["audio"][1, 300:].any()
    listed = _read(store, NoTransform(), collate="list")["audio"]
    assert [len(samples) for samples in listed] == [800, 300, 1200]
    store.close()


@pytest.mark.parametrize("channels", [1, 2])
def test_a_window_of_each_sound_is_cut(channels):
    store = _store(source=_folder(channels))
    batch = _read(store, SoundWindow(400))
    assert list(batch["audio"].shape) == [3, 400, *[2] * (channels - 1)]
    assert "audio_length" not in batch
    assert not batch["audio"][1, 300:].any()
    middle = _read(store, SoundWindow(400), training=False)["audio"]
    whole = read_sound(sound(1200, channels=channels))
    assert np.array_equal(middle[2], whole[400:800])
    other = _read(store, SoundWindow(400), epoch=1)["audio"]
    assert not torch.equal(batch["audio"][2], other[2])
    places = range(801)
    assert sum(np.array_equal(batch["audio"][2], whole[n : n + 400]) for n in places) >= 1
    store.close()


def test_other_rates_are_refused_and_become_one():
    source = _folder(rates=(8000, 16000, 8000))
    with pytest.raises(DataError, match=r"D180.*1\.wav: audio.*16000.*add pack\.rate=8000"):
        _store(source=source)
    store = _store(source=source, rate=16000)
    assert _read(store, NoTransform())["audio_length"].tolist() == [1600, 600, 1200]
    assert store.manifest.options["rate"] == 16000
    store.close()


def test_other_numbers_of_channels_are_refused():
    files = [sound(channels=1), sound(channels=2)]
    source = FunctionInput("f", lambda item: {"audio": files[item]}, None, 2, None)
    with pytest.raises(DataError, match=r"D180.*2 channels, the first has 1"):
        _store(source=source)


def test_a_source_gives_windows_of_one_length_and_counts_no_padding_of_them():
    _store().close()
    source = hdf5_source("x.h5", context=make_context(3, transform=SoundWindow(400)))
    assert [batch["audio"].shape for batch, *_ in source.batches(0)] == [(3, 400)]
    assert source.content() == {}
    source.close()


@pytest.mark.parametrize(
    "data", [b"fLaC", sound()[:900], sound(kind="FLAC")[:-9], sound(kind="FLAC")[:400] + b"x" * 400]
)
def test_a_damaged_sound_is_named_when_it_is_packed(data):
    source = _folder()
    Path("sounds/a/1.wav").write_bytes(data)
    with pytest.raises(DataError, match=r"D181.*sounds/a/1\.wav: audio: "):
        _store(source=source)
