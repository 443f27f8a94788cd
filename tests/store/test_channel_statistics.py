"""Mean and deviation of channels, whatever holds them."""

import numpy as np
import pytest

from framework.contracts.records import ChannelStatistics, Field
from framework.input.folder import FolderInput
from framework.pack.pack_store import pack
from framework.pack.preparation import Preparation
from framework.store import store_facts
from framework.store.folder_store import FolderStore, FolderWriter
from framework.store.open_store import open_store
from framework.store.store_facts import (
    NUM_RECORDS,
    StatisticsSampler,
    num_channels,
    sample_indices,
    statistics_of,
)
from tests.conftest import make_records, write_store
from tests.input.inputs import COUNT, packing

PIXELS = Field("uint8", (3, 4, 4))


def measured(field, values):
    sampler = StatisticsSampler({"x": field}, len(values))
    sampler.pass_by({"x": values}, len(values))
    return sampler.result()["x"]


def expected(images):
    """Return the mean and the standard deviation of each channel of [N, C, H, W] values."""
    values = np.asarray(images, np.float64).swapaxes(0, 1).reshape(images.shape[1], -1)
    return values.mean(1), values.std(1)


def is_near(statistics, mean, std):
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(statistics.std, std, rtol=1e-5)
    return True


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint16"])
def test_other_values_are_measured_as_normalizing_takes_them(dtype):
    images = (np.random.default_rng(0).random((9, 2, 5, 6)) * 200 + 5000).astype(dtype)
    white = 65535 if dtype == "uint16" else 1
    assert is_near(measured(Field(dtype, (2, 5, 6)), images), *expected(images / white))


@pytest.mark.parametrize(
    ("field", "channels"),
    [
        (PIXELS, 3),
        (Field("uint8", (7, 4, 4)), 7),
        (Field("uint8", (1, None, None), "image"), 1),
        (Field("float32", (5, 4, 4)), 5),
        (Field("float32", (1, 1024)), None),
        (Field("int64", ()), None),
        (Field("int64", (1, 4, 4)), None),
    ],
)
def test_images_and_what_is_like_them_have_channels(field, channels):
    assert num_channels(field) == channels


def test_a_thousand_records_spread_over_all_are_measured():
    images = np.zeros((5000, 1, 1, 1), np.uint8)
    wanted = sample_indices(5000)
    images[wanted] = 255
    assert (len(wanted), int(wanted[0]), int(wanted[-1])) == (NUM_RECORDS, 0, 4999)
    assert measured(Field("uint8", (1, 1, 1)), images) == ChannelStatistics((1.0,), (0.0,))


def test_every_way_to_pack_gives_the_same_statistics():
    results = []
    for number, (suffix, one_file, num_workers) in enumerate(
        [
            (".h5", True, 0),
            (".h5", False, 2),
            (".lmdb", True, 1),
        ]
    ):
        pack(packing(f"{number}{suffix}", one_file=one_file), num_workers)
        store = open_store(f"{number}{suffix}")
        results.append(store.manifest.statistics)
        assert statistics_of(store) == store.manifest.statistics
        store.close()
    values = (np.arange(COUNT) % 251)[sample_indices(COUNT)] / 255
    assert is_near(results[0]["image"], [values.mean()] * 3, [values.std()] * 3)
    assert all(statistics == results[0] for statistics in results)


def write_photos(records, count):
    manifest = open_store(write_store("a.h5", records)).manifest
    writer = FolderWriter("photos", fields=manifest.fields, num_records=count)
    writer.write(records, [""] * count)
    writer.close(manifest)


def test_a_folder_and_the_stores_packed_of_it_have_the_same_statistics():
    records = make_records(12)
    write_photos(records, 12)
    of_folder = statistics_of(FolderStore("photos"))
    assert is_near(of_folder["image"], *expected(records["image"] / 255))
    for path, encode in (("kept.h5", "keep"), ("raw.lmdb", "raw"), ("raw.h5", "raw")):
        pack(packing(path, FolderInput("photos", None, None), prepare=Preparation(encode=encode)))
        assert open_store(path).manifest.statistics == of_folder


def test_a_store_is_measured_once(monkeypatch):
    reads = []
    read = FolderStore.read

    def counted(store, indices, views=()):
        reads.append(len(indices))
        return read(store, indices, views)

    monkeypatch.setattr(store_facts, "MEASURED", {})
    monkeypatch.setattr(FolderStore, "read", counted)
    write_photos(make_records(3), 3)
    first = statistics_of(FolderStore("photos"))
    assert statistics_of(FolderStore("photos")) == first
    assert sum(reads) == 3
