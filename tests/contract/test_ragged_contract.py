"""Fields of any length, by every store, writer, source, worker and loader."""

import numpy as np
import pytest
import torch

from framework.contracts.batch import move, pin
from framework.contracts.records import Manifest, Ragged
from framework.errors import ConfigError, DataError
from framework.input.store import StoreInput
from framework.pack import pack_store, packing
from framework.store import folder_store, lmdb_store
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.transform import center_crop, compose, function, none
from framework.transform.flip import FlipTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.rotate import Rotate
from tests.contract import cases

KINDS = ("hdf5", "lmdb", "shards", "dali", "tar", "parquet")
COLLATE = ("pad", "nested", "list")
CROP = RandomResizedCrop([6, 5], [0.3, 1.0], [0.75, 1.33], 0.5, 0.5, True)
TURNED = compose.ComposeTransform({"turn": Rotate([0, 1, 3]), "crop": RandomCrop([9, 9], 0.5, 0.5)})
RAGGED = [name for name, field in cases.RAGGED_FIELDS.items() if field.encoding == "ragged"]
STORES = {"hdf5": (HDF5Writer, HDF5Store), "lmdb": (lmdb_store.LMDBWriter, lmdb_store.LMDBStore)}
every = pytest.mark.parametrize("kind", KINDS)
every_collate = pytest.mark.parametrize("collate", COLLATE)


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(kind, **options):
        made.append(cases.make_source(f"{kind}_ragged", 10, **options))
        return made[-1]

    yield source
    for item in made:
        item.close()


def unpadded(batch, name):
    lengths = batch[f"{name}_length"].tolist()
    return [array[:length].tolist() for array, length in zip(batch[name], lengths, strict=True)]


@pytest.mark.parametrize("kind", STORES)
def test_a_store_gives_what_was_written_in_parts_and_notices_a_changed_row(kind):
    writer_class, store_class = STORES[kind]
    records = cases.ragged_records(9)
    writer = writer_class("x", fields=cases.RAGGED_FIELDS, num_records=9)
    writer.write({name: values[:4] for name, values in records.items()}, list("abcd"))
    writer.write({name: values[4:] for name, values in records.items()}, list("efghi"))
    writer.close(Manifest(9, cases.RAGGED_FIELDS, ["a", "b", "c"]))
    store, indices = store_class("x"), torch.tensor([8, 0, 3, 3])
    result = store.read(indices)
    assert store.manifest.fields == cases.RAGGED_FIELDS
    for name in RAGGED:
        assert isinstance(result[name], Ragged)
        assert cases.plain_values(result[name]) == [records[name][n].tolist() for n in (8, 0, 3, 3)]
    assert store.damaged(indices, result) == []
    result["signal"].values[-1, -1] += 1
    assert len(store.damaged(indices, result)) == 1
    store.close()


def test_records_without_rows_are_read():
    fields = {"signal": cases.RAGGED_FIELDS["signal"]}
    writer = HDF5Writer("x.h5", fields=fields, num_records=2)
    writer.write({"signal": [np.zeros((0, 2), np.int16)] * 2}, ["a", "b"])
    writer.close(Manifest(2, fields))
    store = HDF5Store("x.h5")
    assert cases.plain_values(store.read(torch.tensor([1, 0]))["signal"]) == [[], []]
    store.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_packed_again(kind):
    path, records = cases.write_case("hdf5_ragged", 9)
    pack_store.pack(packing.Packing(StoreInput(path), STORES[kind][0], "again"))
    store = STORES[kind][1]("again")
    assert store.manifest.fields == cases.RAGGED_FIELDS
    assert cases.plain_values(store.read(torch.arange(9))["signal"]) == cases.plain_values(
        records["signal"]
    )
    store.close()


def test_a_folder_of_images_cannot_hold_them():
    with pytest.raises(DataError, match="D114"):
        folder_store.FolderWriter("x", fields=cases.RAGGED_FIELDS, num_records=3)


@every
def test_numbers_are_padded_nested_or_listed_and_texts_and_bytes_are_lists(make, kind):
    records = cases.ragged_records(10)
    for collate in COLLATE:
        for batch, *_ in make(kind, collate=collate).batches(0):
            expected = {name: [records[name][n] for n in batch["index"]] for name in records}
            assert batch["text"] == [bytes(text).decode() for text in expected["text"]]
            assert batch["blob"] == [bytes(blob) for blob in expected["blob"]]
            assert cases.plain_values(batch["points"]) == np.stack(expected["points"]).tolist()
            for name in ("boxes", "signal"):
                rows = [array.tolist() for array in expected[name]]
                if collate == "pad":
                    lengths = batch[f"{name}_length"]
                    beyond = torch.arange(batch[name].shape[1]) >= lengths.unsqueeze(1)
                    assert unpadded(batch, name) == rows
                    assert not batch[name][beyond].any()
                    assert batch[name].shape[1] == lengths.max()
                else:
                    assert isinstance(batch[name], list) == (collate == "list")
                    assert cases.plain_values(batch[name]) == rows


@every
@every_collate
def test_workers_do_not_change_a_batch(make, kind, collate):
    ways = cases.TAKEN.get(kind, cases.WAYS)
    transform = CROP if collate == "pad" else None
    result = []
    for num, how in ways:
        options = {"num_workers": num, "worker_kind": how, "collate": collate}
        source = make(kind, transform=transform, **options)
        result.append([cases.micros(source, epoch) for epoch in range(2)])
        assert cases.micros(source, 1, 2) == result[0][1][2:]
    assert result == result[:1] * len(ways)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_several_sizes_become_a_list(make, num_workers):
    flip = FlipTransform(0.5, 0.0)
    source = make("hdf5", collate="list", num_workers=num_workers, transform=flip)
    batch = next(source.batches(0)).batch
    assert [tuple(image.shape) for image in batch["image"]] == [(3, 16, 12)] * 4


@every_collate
def test_a_batch_can_be_moved_and_pinned(make, collate):
    batch = next(make("hdf5", collate=collate).batches(0)).batch
    assert cases.plain(move(batch, torch.device("cpu"))) == cases.plain(batch)
    if torch.cuda.is_available():
        assert cases.plain(pin(batch)) == cases.plain(batch)


@every
def test_boxes_and_points_follow_a_crop(make, kind):
    records = cases.ragged_records(10)
    batch = next(make(kind, transform=center_crop.CenterCrop([8, 8], 12, True)).batches(0)).batch
    # the shorter side, 12, stays; of 16 x 12 pixels, the middle 8 x 8 are cut
    for index, boxes in zip(batch["index"].tolist(), unpadded(batch, "boxes"), strict=True):
        moved = records["boxes"][index] - np.array([2, 4, 2, 4], np.float32)
        expected = np.clip(moved, 0, 8)
        assert np.array(boxes, np.float32).reshape(-1, 4) == pytest.approx(expected)
    moved = records["points"][batch["index"].numpy()][..., :2] - np.array([2, 4], np.float32)
    assert batch["points"][..., :2].numpy() == pytest.approx(moved)
    outside = ((moved < 0) | (moved > 8)).any(-1)
    assert not batch["points"][..., 2][torch.from_numpy(outside)].any()


@pytest.mark.parametrize(
    "transform", [CROP, FlipTransform(0.5, 0.5), TURNED], ids=["crop", "flip", "turn"]
)
def test_boxes_and_points_are_the_same_whoever_reads_them(make, transform):
    result = []
    for kind in KINDS:
        batch = next(make(kind, transform=transform).batches(1)).batch
        result.append(cases.plain({name: batch[name] for name in ("index", "boxes", "points")}))
    assert result == result[:1] * len(KINDS)


def test_a_function_cannot_move_boxes_and_points(make):
    with pytest.raises(ConfigError, match=r"C199.*a function cannot move boxes, points"):
        make("hdf5", transform=function.FunctionTransform(max, none.NoTransform(), False))
