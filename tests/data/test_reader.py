import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.data.reader import BatchReader, Request
from framework.errors import ConfigError, DataError
from framework.measure.stopwatch import Stages
from framework.order.draws import draws
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Store
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from tests.conftest import FIELDS, make_context, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, make_store, plain, write_folder
from tests.data.pace import SlowStore, SlowTransform, slow_reading

CROP = RandomResizedCrop([4, 4], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)


def _reader(store, transform=None):
    return BatchReader(store, make_context(transform=transform))


def _ask(*indices, training=False, epoch=0):
    return Request(epoch, torch.tensor(indices), training)


def test_raw_fields_pass_as_they_are():
    store, records = make_store("hdf5")
    batch = _reader(store)(_ask(3, 0))
    assert batch["image"].tolist() == records["image"][[3, 0]].tolist()
    assert batch["label"].tolist() == records["label"][[3, 0]].tolist()


def test_image_files_become_pixels_channels_first():
    store = FolderStore(write_folder("in", [jpeg(0, 6, 8)] * 3))
    batch = _reader(store)(_ask(0, 1))
    assert batch["image"].shape == (2, 3, 6, 8)
    assert batch["image"].dtype == torch.uint8


def test_raw_images_are_scaled_where_the_transform_has_a_size():
    batch = _reader(make_store("hdf5")[0], Resize([2, 6], True, True))(_ask(3, 0))
    assert batch["image"].shape == (2, 3, 2, 6)
    assert batch["label"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (3, 4)), ("uint8", (4, 4)), ("uint8", (5, 4, 4)), ("uint8", ())],
)
def test_raw_fields_that_are_no_images_are_not_scaled(dtype, shape):
    path = write_store("x.h5", {"x": np.ones((3, *shape), dtype)}, {"x": Field(dtype, shape)})
    assert _reader(HDF5Store(path), Resize([2, 2], True, True))(_ask(1))["x"].shape == (1, *shape)


def _shift(images, seed):
    return images


@pytest.mark.parametrize(
    "transform",
    [
        Resize([2, 2], True, True),
        CROP,
        FlipTransform(0.5, 0.0),
        FunctionTransform(_shift, NoTransform(), True),
    ],
)
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_a_transform_that_would_change_nothing_of_deep_pixels_is_refused(dtype, transform):
    values = {"x": np.ones((3, 1, 4, 4), dtype)}
    store = HDF5Store(write_store("x.h5", values, {"x": Field(dtype, (1, 4, 4))}))
    with pytest.raises(ConfigError, match=rf"C199.*transform.*x of {dtype}.*transform=none"):
        _reader(store, transform)
    assert _reader(store, NoTransform())(_ask(1))["x"].shape == (1, 1, 4, 4)


def test_deep_values_beside_an_image_of_8_bits_stay_whole():
    records = make_records(4)
    records["deep"] = np.ones((4, 1, 4, 4), np.float32)
    fields = {**FIELDS, "deep": Field("float32", (1, 4, 4))}
    store = HDF5Store(write_store("x.h5", records, fields))
    batch = _reader(store, Resize([2, 2], True, True))(_ask(1))
    assert (batch["image"].shape, batch["deep"].shape) == ((1, 3, 2, 2), (1, 1, 4, 4))


def test_a_raw_image_and_its_file_are_transformed_alike():
    records = make_records(4)
    batch = _reader(HDF5Store(write_store("x.h5", records)), CROP)(_ask(2, 1, training=True))
    numbers = draws(torch.tensor([2, 1]), 0, 0, 5)
    windows = CROP.windows(torch.tensor([[4, 4], [4, 4]]), numbers).tolist()
    for image, window, index in zip(batch["image"], windows, [2, 1], strict=True):
        top, left, height, width, flip = window
        part = records["image"][index][:, top : top + height, left : left + width]
        assert (height, width) != (4, 4) or np.array_equal(
            image.numpy(), part[:, :, :: -1 if flip else 1]
        )


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
        read = BatchReader(store, make_context(transform=transform, collate=collate))
        batch = read(_ask(2, 5, 0))["image"]
        expected = images[[2, 5, 0]] + 2
        expected[0] += 1
        assert np.array_equal(np.stack(list(batch)), expected)


def test_outside_training_nothing_is_drawn():
    read = _reader(make_store("folder")[0], CROP)
    assert plain(read(_ask(1, 2, epoch=0))) == plain(read(_ask(1, 2, epoch=5)))
    assert plain(read(_ask(1, 2, epoch=0, training=True))) != plain(
        read(_ask(1, 2, epoch=5, training=True))
    )


def test_a_record_looks_the_same_in_any_batch():
    read = _reader(make_store("folder")[0], CROP)
    together, alone = read(_ask(1, 2, 3, training=True)), read(_ask(2, training=True))
    assert torch.equal(together["image"][1], alone["image"][0])


@pytest.mark.parametrize("data", [b"text", b"", jpeg(0)[:100]])
def test_a_bad_image_is_named_by_its_file(data):
    store = FolderStore(write_folder("in", [jpeg(0), data, jpeg(1)]))
    with pytest.raises(DataError, match=r"D106.*in/b/001\.jpg.*not a readable image"):
        _reader(store)(_ask(0, 1, 2))


def test_a_bad_image_in_a_store_is_named_by_its_number():
    path = write_store(
        "x.h5", {"image": [jpeg(0), b"text", jpeg(1)], "label": np.arange(3)}, IMAGE_FIELDS
    )
    with pytest.raises(DataError, match=r"D106.*x\.h5: record 1"):
        _reader(HDF5Store(path))(_ask(0, 1, 2))


def test_images_of_different_sizes_are_named_by_the_odd_one():
    store = FolderStore(write_folder("in", [jpeg(0), jpeg(1), jpeg(2, 20, 30)]))
    with pytest.raises(
        DataError, match=r"D107.*in/c/002\.jpg.*\(3, 20, 30\).*\(3, 16, 12\).*transform=resize"
    ):
        _reader(store)(_ask(0, 1, 2))


def test_images_of_different_sizes_fit_once_they_are_scaled():
    store = FolderStore(write_folder("in", [jpeg(0), jpeg(1), jpeg(2, 20, 30)]))
    assert _reader(store, Resize([5, 5], True, True))(_ask(0, 1, 2))["image"].shape == (3, 3, 5, 5)


# ------------------------------------------------------------------------------------------- stages


def _seconds(store, transform, request):
    """Return the stage seconds of a batch that is read in this thread."""
    stages = Stages()
    stages.add_slices(BatchReader(store, make_context(transform=transform)).timed(request).slices_s)
    return stages.take()


@pytest.mark.parametrize("function", [None, lambda images, _: images])
def test_each_stage_of_image_files_has_the_time_of_its_own_work(monkeypatch, function):
    pace = slow_reading(monkeypatch)
    store = SlowStore(FolderStore(write_folder("in", [jpeg(0)] * 4)), pace)
    seconds = _seconds(
        store, SlowTransform(Resize([5, 5], True, True), pace, function), _ask(0, 3, 1)
    )
    expected = {"read": 1.0, "decode": 3 * (2.0 + 100.0), "transform": 10.0 + 3 * 1000.0}
    with_function = {"transform": 10.0 + 3 * (1000.0 + 10_000.0), "collate": 3 * 7.0}
    assert seconds == (expected if function is None else {**expected, **with_function})


@pytest.mark.parametrize("function", [None, lambda images, _: images])
def test_pixels_stored_raw_are_not_decoded(monkeypatch, function):
    pace = slow_reading(monkeypatch)
    store = SlowStore(make_store("hdf5")[0], pace)
    seconds = _seconds(store, SlowTransform(Resize([2, 6], True, True), pace, function), _ask(3, 0))
    expected = {"read": 1.0, "transform": 10.0 + 2 * 1000.0}
    with_function = {"transform": 10.0 + 2 * 11_000.0, "collate": 2 * 7.0}
    assert seconds == (expected if function is None else {**expected, **with_function})


def test_records_that_are_only_gathered_are_only_read(monkeypatch):
    pace = slow_reading(monkeypatch)
    store = SlowStore(make_store("hdf5")[0], pace)
    assert _seconds(store, None, _ask(3, 0)) == {"read": 1.0}


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_images"])
def test_comparing_checksums_is_reading(monkeypatch, kind):
    pace = slow_reading(monkeypatch)
    store = SlowStore(make_store(kind)[0], pace)
    assert _seconds(store, None, _ask(3, 0)._replace(verify=True))["read"] == 21.0


def test_slices_and_joining_them_are_counted(monkeypatch):
    pace = slow_reading(monkeypatch)
    read = BatchReader(
        SlowStore(FolderStore(write_folder("in", [jpeg(0)] * 4)), pace), make_context()
    )
    work = read.begin(_ask(0, 3, 1))
    read.fill(work, 0, 2)
    read.fill(work, 2, 3)
    read.finish(work)
    assert [slice_s["read"] for slice_s in work.slices_s[:2]] == [1.0, 1.0]
    assert [slice_s["decode"] for slice_s in work.slices_s[:2]] == [204.0, 102.0]
    assert work.slices_s[2] == {"collate": 2 * 7.0}  # images and labels


def test_a_batch_with_its_seconds_is_the_batch_without():
    read = _reader(make_store("folder")[0], CROP)
    request = _ask(1, 2, training=True)
    assert plain(read.timed(request).batch) == plain(read(request))
