"""Fields of any length, by every store, writer, source, worker and loader."""

import numpy as np
import pytest
import torch

from framework.contracts.batch import move, pin
from framework.contracts.records import Manifest, Ragged
from framework.errors import ConfigError, DataError
from framework.input.store import StoreInput
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packing
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from framework.transform.center_crop import CenterCrop
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.rotate import Rotate
from tests.contract.cases import (
    RAGGED_FIELDS,
    TAKEN,
    WAYS,
    make_source,
    micros,
    plain,
    plain_values,
    ragged_records,
    write_case,
)

SOURCES = (
    "hdf5_ragged",
    "lmdb_ragged",
    "shards_ragged",
    "dali_ragged",
    "tar_ragged",
    "parquet_ragged",
)
COLLATE = ("pad", "nested", "list")
CROP = RandomResizedCrop([6, 5], [0.3, 1.0], [0.75, 1.33], 0.5, 0.5, True)
TURNED = ComposeTransform({"turn": Rotate([0, 1, 3]), "crop": RandomCrop([9, 9], 0.5, 0.5)})
RAGGED = [name for name, field in RAGGED_FIELDS.items() if field.encoding == "ragged"]
STORES = [(HDF5Writer, HDF5Store), (LMDBWriter, LMDBStore)]


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(kind, count=10, **options):
        made.append(make_source(kind, count, **options))
        return made[-1]

    yield source
    for item in made:
        item.close()


def unpadded(batch, name):
    lengths = batch[f"{name}_length"].tolist()
    return [array[:length].tolist() for array, length in zip(batch[name], lengths, strict=True)]


@pytest.mark.parametrize(("writer_class", "store_class"), STORES)
def test_a_store_gives_what_was_written(writer_class, store_class):
    records = ragged_records(9)
    writer = writer_class("x", fields=RAGGED_FIELDS, num_records=9)
    writer.write({name: values[:4] for name, values in records.items()}, list("abcd"))
    writer.write({name: values[4:] for name, values in records.items()}, list("efghi"))
    writer.close(Manifest(9, RAGGED_FIELDS, ["a", "b", "c"]))
    store = store_class("x")
    result = store.read(torch.tensor([8, 0, 3, 3]))
    assert store.manifest.fields == RAGGED_FIELDS
    for name in RAGGED:
        assert isinstance(result[name], Ragged)
        assert plain_values(result[name]) == [records[name][n].tolist() for n in (8, 0, 3, 3)]
    assert store.damaged(torch.tensor([8, 0, 3, 3]), result) == []
    store.close()


@pytest.mark.parametrize(("writer_class", "store_class"), STORES)
def test_a_changed_row_is_noticed(writer_class, store_class):
    store = store_class(write_case(f"{store_class.__name__[:4].lower()}_ragged", 7)[0])
    result = store.read(torch.arange(7))
    result["signal"].values[-1, -1] += 1
    assert len(store.damaged(torch.arange(7), result)) == 1
    store.close()


def test_records_without_rows_are_read():
    fields = {"signal": RAGGED_FIELDS["signal"]}
    writer = HDF5Writer("x.h5", fields=fields, num_records=2)
    writer.write({"signal": [np.zeros((0, 2), np.int16)] * 2}, ["a", "b"])
    writer.close(Manifest(2, fields))
    store = HDF5Store("x.h5")
    assert plain_values(store.read(torch.tensor([1, 0]))["signal"]) == [[], []]
    store.close()


def test_a_folder_of_images_cannot_hold_them():
    with pytest.raises(DataError, match="D114"):
        FolderWriter("x", fields=RAGGED_FIELDS, num_records=3)


@pytest.mark.parametrize("kind", SOURCES)
def test_numbers_are_padded_with_zeros_and_come_with_their_lengths(make, kind):
    records = ragged_records(10)
    for batch, *_ in make(kind).batches(0):
        for name in ("boxes", "signal"):
            expected = [records[name][index].tolist() for index in batch["index"]]
            assert unpadded(batch, name) == expected
            beyond = torch.arange(batch[name].shape[1]) >= batch[f"{name}_length"].unsqueeze(1)
            assert not batch[name][beyond].any()
            assert batch[name].shape[1] == batch[f"{name}_length"].max()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("collate", COLLATE)
def test_texts_and_bytes_are_lists(make, kind, collate):
    records = ragged_records(10)
    for batch, *_ in make(kind, collate=collate).batches(0):
        texts = [bytes(records["text"][index]).decode() for index in batch["index"]]
        assert batch["text"] == texts
        assert batch["blob"] == [bytes(records["blob"][index]) for index in batch["index"]]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("collate", ["nested", "list"])
def test_numbers_are_nested_or_listed(make, kind, collate):
    records = ragged_records(10)
    for batch, *_ in make(kind, collate=collate).batches(0):
        expected = [records["signal"][index].tolist() for index in batch["index"]]
        assert isinstance(batch["signal"], list) == (collate == "list")
        assert plain_values(batch["signal"]) == expected


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("collate", COLLATE)
@pytest.mark.parametrize("transform", [None, CROP])
def test_workers_do_not_change_a_batch(make, kind, collate, transform):
    ways = TAKEN.get(kind.partition("_")[0], WAYS)
    result = []
    for num, how in ways:
        options = {"num_workers": num, "worker_kind": how, "collate": collate}
        source = make(kind, transform=transform, **options)
        result.append([micros(source, epoch) for epoch in range(2)])
    assert result == result[:1] * len(ways)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_later_start_is_the_tail_of_the_epoch(make, kind):
    source = make(kind, transform=CROP)
    assert micros(source, 1, 2) == micros(source, 1)[2:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_several_sizes_become_a_list(make, num_workers):
    source = make(
        "hdf5_ragged", collate="list", num_workers=num_workers, transform=FlipTransform(0.5, 0.0)
    )
    batch = next(source.batches(0)).batch
    assert [tuple(image.shape) for image in batch["image"]] == [(3, 16, 12)] * 4


# ---- boxes and points


@pytest.mark.parametrize("kind", SOURCES)
def test_without_a_change_boxes_and_points_stay(make, kind):
    records = ragged_records(10)
    batch = next(make(kind).batches(0)).batch
    assert batch["points"].tolist() == records["points"][batch["index"].numpy()].tolist()


@pytest.mark.parametrize("kind", SOURCES)
def test_they_follow_a_crop(make, kind):
    records = ragged_records(10)
    batch = next(make(kind, transform=CenterCrop([8, 8], 12, True)).batches(0)).batch
    # the shorter side, 12, stays; of 16 x 12 pixels, the middle 8 x 8 are cut
    for index, boxes in zip(batch["index"].tolist(), unpadded(batch, "boxes"), strict=True):
        moved = records["boxes"][index] - np.array([2, 4, 2, 4], np.float32)
        expected = np.clip(moved, 0, 8)
        assert np.array(boxes, np.float32).reshape(-1, 4) == pytest.approx(expected)
    moved = records["points"][batch["index"].numpy()][..., :2] - np.array([2, 4], np.float32)
    assert batch["points"][..., :2].numpy() == pytest.approx(moved)
    outside = ((moved < 0) | (moved > 8)).any(-1)
    assert not batch["points"][..., 2][torch.from_numpy(outside)].any()


@pytest.mark.parametrize("transform", [CROP, FlipTransform(0.5, 0.5), TURNED])
def test_they_are_the_same_whoever_reads_them(make, transform):
    result = []
    for kind in SOURCES:
        batch = next(make(kind, transform=transform).batches(1)).batch
        result.append(plain({name: batch[name] for name in ("index", "boxes", "points")}))
    assert result == result[:1] * len(SOURCES)


def _unchanged(images, rng):
    return images


def test_a_function_cannot_move_them(make):
    with pytest.raises(ConfigError, match=r"C199.*a function cannot move boxes, points"):
        make("hdf5_ragged", transform=FunctionTransform(_unchanged, NoTransform(), False))


# ---- batches on their way


@pytest.mark.parametrize("collate", COLLATE)
def test_a_batch_can_be_moved(make, collate):
    batch = next(make("hdf5_ragged", collate=collate).batches(0)).batch
    moved = move(batch, torch.device("cpu"))
    assert plain(moved) == plain(batch)


@pytest.mark.parametrize("collate", COLLATE)
def test_a_batch_is_pinned_if_possible(make, collate):
    batch = next(make("hdf5_ragged", collate=collate).batches(0)).batch
    if not torch.cuda.is_available():
        pytest.skip("page-locked memory needs CUDA")
    assert plain(pin(batch)) == plain(batch)


# ---- packing


@pytest.mark.parametrize("writer_class", [HDF5Writer, LMDBWriter])
def test_a_store_of_them_is_packed_again(writer_class):
    path, records = write_case("hdf5_ragged", 9)
    pack(Packing(StoreInput(path), writer_class, "again"))
    store = (HDF5Store if writer_class is HDF5Writer else LMDBStore)("again")
    assert store.manifest.fields == RAGGED_FIELDS
    assert plain_values(store.read(torch.arange(9))["signal"]) == plain_values(records["signal"])
    store.close()
