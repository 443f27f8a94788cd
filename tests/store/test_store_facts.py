"""What an order may ask about records, and mean and deviation of channels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import ChannelStatistics, Field, RecordStore
from framework.errors import ConfigError
from framework.input.folder import FolderInput
from framework.media.decode import encode_jpeg, encode_png
from framework.pack.pack_store import pack
from framework.pack.preparation import Preparation
from framework.store import folder_store, store_facts
from framework.store.open_store import open_store
from tests.conftest import make_records, write_store
from tests.contract.cases import RAGGED_FIELDS, STORES, make_store, open_case, plain_values
from tests.contract.cases import ragged_records as records_of
from tests.input.inputs import COUNT, packing


@pytest.mark.parametrize("kind", STORES)
def test_a_column_is_a_field_of_every_record(kind):
    store, records = make_store(kind)
    for name, field in store.manifest.fields.items():
        for column in (store.column(name), RecordStore.column(store, name)):
            assert plain_values(column) == plain_values(records[name])
        if field.encoding == "ragged":
            assert store.lengths(name).tolist() == [len(row) for row in records[name]]
    store.close()


def facts(*names):
    fields = {name: RAGGED_FIELDS[name] for name in names}
    records = {name: records_of(5)[name] for name in names}
    return store_facts.StoreFacts(open_case("hdf5", write_store("some.h5", records, fields)))


def test_a_question_without_an_answer_names_the_choices():
    with pytest.raises(ConfigError, match=r"C200.*field = null.*choose one of text, blob"):
        facts("label", "text", "blob").lengths(None)
    with pytest.raises(ConfigError, match=r"C200.*field = label.*choose one of blob"):
        facts("label", "blob").lengths("label")
    with pytest.raises(ConfigError, match=r"C200.*no field .* has any length.*order=full"):
        facts("label").lengths(None)
    with pytest.raises(ConfigError, match=r"C200.*cannot tell"):
        store_facts.StoreFacts(None).lengths(None)


def test_records_are_known_by_their_number_unless_a_field_has_that_name():
    assert facts("label").names == ["label", "record"]
    assert facts("label").answer("record").tolist() == [0, 1, 2, 3, 4]
    fields = {"record": Field("int64", ())}
    store = open_case("hdf5", write_store("own.h5", {"record": torch.tensor([8, 9])}, fields))
    assert store_facts.StoreFacts(store).names == ["record"]
    assert store_facts.StoreFacts(store).answer("record").tolist() == [8, 9]


def test_the_sizes_of_photographs_are_read_from_the_starts_of_their_files(monkeypatch):
    Path("in/a").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), np.uint8)
    Path("in/a/1.jpg").write_bytes(encode_jpeg(noise.transpose(2, 0, 1), 95))
    Path("in/a/2.png").write_bytes(encode_png(noise.transpose(2, 0, 1)))
    Path("in/a/3.png").write_bytes(encode_png(noise[:50].transpose(2, 0, 1)))
    sizes = [path.stat().st_size for path in sorted(Path("in/a").iterdir())]
    assert min(sizes[:2]) > store_facts.START_BYTES > sizes[2]
    store = folder_store.FolderStore("in")
    whole = []
    read = store.read
    monkeypatch.setattr(
        store, "read", lambda *given: whole.extend(given[0].tolist()) or read(*given)
    )
    facts = store_facts.StoreFacts(store)
    assert facts.answer("height").tolist() == [400, 400, 50]
    assert facts.answer("width").tolist() == [300, 300, 300]
    assert whole == [1]


PIXELS = Field("uint8", (3, 4, 4))


def measured(field, values):
    sampler = store_facts.StatisticsSampler({"x": field}, len(values))
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
    assert store_facts.num_channels(field) == channels


def test_a_thousand_records_spread_over_all_are_measured():
    images = np.zeros((5000, 1, 1, 1), np.uint8)
    wanted = store_facts.sample_indices(5000)
    images[wanted] = 255
    assert (len(wanted), int(wanted[0]), int(wanted[-1])) == (store_facts.NUM_RECORDS, 0, 4999)
    assert measured(Field("uint8", (1, 1, 1)), images) == ChannelStatistics((1.0,), (0.0,))


def test_every_way_to_pack_gives_the_same_statistics():
    results = []
    for number, (suffix, one_file, num_workers) in enumerate(
        [(".h5", True, 0), (".h5", False, 2), (".lmdb", True, 1)]
    ):
        pack(packing(f"{number}{suffix}", one_file=one_file), num_workers)
        store = open_store(f"{number}{suffix}")
        results.append(store.manifest.statistics)
        assert store_facts.statistics_of(store) == store.manifest.statistics
        store.close()
    values = (np.arange(COUNT) % 251)[store_facts.sample_indices(COUNT)] / 255
    assert is_near(results[0]["image"], [values.mean()] * 3, [values.std()] * 3)
    assert all(statistics == results[0] for statistics in results)


def write_photos(records, count):
    manifest = open_store(write_store("a.h5", records)).manifest
    writer = folder_store.FolderWriter("photos", fields=manifest.fields, num_records=count)
    writer.write(records, [""] * count)
    writer.close(manifest)


def test_a_folder_and_the_stores_packed_of_it_have_the_same_statistics():
    records = make_records(12)
    write_photos(records, 12)
    of_folder = store_facts.statistics_of(folder_store.FolderStore("photos"))
    assert is_near(of_folder["image"], *expected(records["image"] / 255))
    for path, encode in (("kept.h5", "keep"), ("raw.lmdb", "raw"), ("raw.h5", "raw")):
        pack(packing(path, FolderInput("photos", None, None), prepare=Preparation(encode=encode)))
        assert open_store(path).manifest.statistics == of_folder


def test_a_store_is_measured_once(monkeypatch):
    reads = []
    read = folder_store.FolderStore.read

    def counted(store, indices, views=()):
        reads.append(len(indices))
        return read(store, indices, views)

    monkeypatch.setattr(store_facts, "MEASURED", {})
    monkeypatch.setattr(folder_store.FolderStore, "read", counted)
    write_photos(make_records(3), 3)
    first = store_facts.statistics_of(folder_store.FolderStore("photos"))
    assert store_facts.statistics_of(folder_store.FolderStore("photos")) == first
    assert sum(reads) == 3
