"""Records of a store become batches: raw, decoded, transformed, timed and named in errors."""

import gc
import multiprocessing
import os
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data import folder, hdf5, lmdb
from framework.data.reader import BatchReader, Request
from framework.errors import ConfigError, DataError
from framework.measure import clock, host
from framework.media import decode, scale
from framework.store import folder_store, lmdb_store
from framework.store.hdf5_store import HDF5Store
from framework.transform import flip, opencv, random_resized_crop, sound_window, video_window
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.resize import Resize
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import jpeg, make_source, make_store, micros, write_folder
from tests.forks import forked

CROP = random_resized_crop.RandomResizedCrop([4, 4], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)
SMALL = Resize([2, 2], True, True)


def reader(store, transform=None, **options):
    return BatchReader(store, make_context(transform=transform, **options))


def ask(*indices, training=False, epoch=0):
    return Request(epoch, torch.tensor(indices), training)


def unchanged(images, seed):
    return images


def test_raw_images_pass_as_they_are_or_scaled():
    store, records = make_store("hdf5")
    batch = reader(store)(ask(3, 0))
    assert batch["image"].tolist() == records["image"][[3, 0]].tolist()
    assert batch["label"].tolist() == records["label"][[3, 0]].tolist()
    scaled = reader(store, Resize([2, 6], True, True))(ask(3, 0))
    assert scaled["image"].shape == (2, 3, 2, 6)
    assert scaled["label"].tolist() == batch["label"].tolist()


@pytest.mark.parametrize(
    ("transform", "dtype"),
    [(SMALL, "uint16"), (CROP, "float32"), (flip.FlipTransform(0.5, 0.0), "uint16")],
    ids=["resize", "crop", "flip"],
)
def test_a_transform_that_would_change_nothing_of_deep_pixels_is_refused(transform, dtype):
    values = {"x": np.ones((3, 1, 4, 4), dtype)}
    store = HDF5Store(write_store("x.h5", values, {"x": Field(dtype, (1, 4, 4))}))
    with pytest.raises(ConfigError, match=rf"C199.*transform.*x of {dtype}.*transform=none"):
        reader(store, transform)
    assert reader(store, NoTransform())(ask(1))["x"].shape == (1, 1, 4, 4)


def mirrored(arrays, rng):
    return {name: array[::-1] + rng.integers(1, 9) for name, array in arrays.items()}


def test_a_function_changes_arrays_of_data_without_images():
    values = {"x": np.arange(24).reshape(4, 2, 3), "label": np.arange(4)}
    fields = {"x": Field("int64", (2, 3)), "label": Field("int64", ())}
    store = HDF5Store(write_store("x.h5", values, fields))
    changed = reader(store, FunctionTransform(mirrored, NoTransform(), False))
    batch = changed(ask(2, 1, training=True))
    added = batch["x"].numpy() - values["x"][[2, 1], ::-1]
    assert [len(np.unique(of_record)) for of_record in added] == [1, 1]
    assert batch["label"].tolist() == [2, 1]
    assert np.array_equal(changed(ask(3))["x"][0], values["x"][3])  # not in evaluation


@pytest.mark.parametrize(
    ("transform", "wanted"),
    [
        (SMALL, "images"),
        (FunctionTransform(mirrored, SMALL, False), "images"),
        (opencv.OpenCVTransform(1, 0.5), "images"),
        (sound_window.SoundWindow(8), "sounds"),
        (video_window.VideoWindow(2, 1), "videos"),
    ],
    ids=["resize", "function behind resize", "opencv", "sounds", "videos"],
)
def test_a_transform_without_anything_to_change_is_refused(transform, wanted):
    store = HDF5Store(write_store("x.h5", {"x": np.ones((3, 2))}, {"x": Field("float64", (2,))}))
    with pytest.raises(ConfigError, match=rf"C199.*transform: changes {wanted}, and the data has"):
        reader(store, transform)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("collate", ["pad", "list"])
def test_a_function_may_use_its_memory_again(channels, collate):
    """It may return the same array each time, change what it was given, and keep that."""
    images = np.random.default_rng(0).integers(0, 200, (6, channels, 4, 5), np.uint8)
    fields = {"image": Field("uint8", (channels, 4, 5))}
    store = HDF5Store(write_store("x.h5", {"image": images}, fields))
    buffer, given = np.empty((4, 5, channels), np.uint8), []

    def brighter(images, _):
        given.append(images["image"])
        given[0] += 1  # the first record's image, also when others are asked for
        np.add(images["image"], 2, out=buffer)
        return {"image": buffer}

    transform = FunctionTransform(brighter, NoTransform(), True)
    for _ in range(2):
        given.clear()
        batch = reader(store, transform, collate=collate)(ask(2, 5, 0))["image"]
        expected = images[[2, 5, 0]] + 2
        expected[0] += 1
        assert np.array_equal(np.stack(list(batch)), expected)


def test_images_of_different_sizes_are_named_by_the_odd_one_and_fit_once_they_are_scaled():
    store = folder_store.FolderStore(write_folder("in", [jpeg(0), jpeg(1), jpeg(2, 20, 30)]))
    words = r"D107.*in/c/002\.jpg.*\(3, 20, 30\).*\(3, 16, 12\).*transform=resize"
    with pytest.raises(DataError, match=words):
        reader(store)(ask(0, 1, 2))
    assert reader(store, SMALL)(ask(0, 1, 2))["image"].shape == (3, 3, 2, 2)


def slowed(function, seconds):
    def slow(*arguments, **options):
        time.sleep(seconds)
        return function(*arguments, **options)

    return slow


def test_each_stage_has_the_time_of_its_own_work(monkeypatch):
    store = folder_store.FolderStore(write_folder("in", [jpeg(0)] * 4))
    monkeypatch.setattr(store, "read_timed", slowed(store.read_timed, 0.1))
    monkeypatch.setattr(scale, "decode_windows", slowed(scale.decode_windows, 0.03))
    monkeypatch.setattr(SMALL, "windows", slowed(SMALL.windows, 0.02))
    stages = clock.Stages()
    stages.add_slices(reader(store, SMALL).timed(ask(0, 3, 1)).slices_s)
    seconds = stages.take()
    assert seconds.keys() == {"read", "decode", "transform", "collate"}
    assert seconds["read"] >= 0.1
    assert seconds["decode"] >= 0.03
    assert seconds["transform"] >= 0.02


STORES = {"x.h5": (HDF5Store, hdf5.hdf5_source), "x.lmdb": (lmdb_store.LMDBStore, lmdb.lmdb_source)}


def smaller(images, rng):
    return {name: image[:5, :6] for name, image in images.items()}


def source_of_sizes(transform, **options):
    """Return a source of images of several sizes."""
    path = write_folder("in", [jpeg(number, 8 + number, 9) for number in range(4)])
    return folder.folder_source(path, context=make_context(transform=transform, **options))


def test_a_sample_has_the_size_that_a_function_makes():
    for training, evaluation in ((True, False), (False, True)):
        function = FunctionTransform(smaller, NoTransform(), evaluation)
        with closing(source_of_sizes(function, training=training)) as source:
            assert source.sample(4)["image"].shape == (4, 3, 5, 6)
    source = source_of_sizes(FunctionTransform(smaller, NoTransform(), False), training=False)
    advice = r"D107.*in validation too: transform\.evaluation=true"
    with closing(source), pytest.raises(DataError, match=advice):
        source.sample(4)


@pytest.mark.parametrize(
    ("name", "num", "kind"),
    [("x.h5", 0, "thread"), ("x.h5", 2, "process"), ("x.lmdb", 2, "thread")],
)
def test_a_file_replaced_between_epochs_is_reported(name, num, kind):
    path = write_store(name, make_records(20))
    source = STORES[name][1](path, context=make_context(num_workers=num, worker_kind=kind))
    micros(source)
    write_store(name, make_records(20))
    with pytest.raises(DataError, match=rf"D117.*{name}: was replaced or rewritten"):
        micros(source, 1)
    source.close()


def bytes_by_epoch(queue):
    """Send how many bytes more this process holds after each epoch, for each kind of data."""
    for kind in ("hdf5", "folder"):
        options = {"batch_size": 32, "num_workers": 2, "transform": Resize([8, 8], True, True)}
        source = make_source(kind, 600, **options)
        sizes = []
        for epoch in range(8):
            for _ in source.batches(epoch):
                pass
            gc.collect()
            sizes.append(host.rss_bytes(os.getpid()))
        source.close()
        queue.put((sizes[-1] - sizes[1]) / (len(sizes) - 2))


def test_memory_stays_as_it_is_from_epoch_to_epoch():
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = forked(bytes_by_epoch, queue)
    growth = [queue.get() for _ in range(2)]
    process.join()
    assert max(growth) < 1 << 20


@pytest.mark.parametrize(
    ("data", "device", "kind"),
    [
        (decode.encode_png(np.zeros((3, 8, 8), np.uint8)), "cuda", "process"),
        (decode.encode_png(np.zeros((3, 8, 8), np.uint8)), "cpu", "thread"),
        (jpeg(0), "cuda", "thread"),
    ],
)
def test_formats_that_hold_the_lock_are_read_in_processes_beside_a_gpu(
    tmp_path, data, device, kind
):
    if kind == "thread" and device == "cuda":
        pytest.importorskip("turbojpeg")
    fields = {"image": Field("uint8", (3, None, None), "image")}
    path = write_store(str(tmp_path / "x.h5"), {"image": [data] * 3}, fields)
    context = make_context(worker_kind=None, device=torch.device(device))
    with closing(hdf5.hdf5_source(path, context=context)) as source:
        assert source.workers.kind == kind
