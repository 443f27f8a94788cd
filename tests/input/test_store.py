import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.input.arrays import ArraysInput
from framework.input.store import StoreInput
from framework.pack.engine.jobs import stamps as item_stamps
from framework.pack.engine.pack_store import pack
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter
from framework.store.open_store import open_store
from tests.conftest import FIELDS, make_records
from tests.contract.cases import IMAGE_FIELDS, encoded_records, plain
from tests.input.inputs import Input, packing


def _write(path, records, fields=FIELDS, classes=("a", "b", "c"), **more):
    """Write a store in our format with the keys k0, k1, ... and return its path."""
    count = len(next(iter(records.values())))
    writer = (HDF5Writer if path.endswith(".h5") else LMDBWriter)(
        path, fields=fields, num_records=count
    )
    writer.write(records, [f"k{number}" for number in range(count)])
    writer.close(Manifest(count, fields, list(classes), source="a test", **more))
    return path


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
@pytest.mark.parametrize(
    ("make", "fields"), [(make_records, FIELDS), (encoded_records, IMAGE_FIELDS)]
)
def test_the_records_and_keys_of_a_store_come_as_they_are(path, make, fields):
    source = StoreInput(_write(path, make(7), fields, options={"encode": "keep"}))
    records, keys = source.read(2, 6)
    assert plain(records) == {name: values[2:6] for name, values in plain(make(7)).items()}
    assert keys == ["k2", "k3", "k4", "k5"]
    manifest = source.manifest
    assert (manifest.num_records, manifest.fields, manifest.classes) == (7, fields, ["a", "b", "c"])
    assert (manifest.source, manifest.options) == ("a test", {"encode": "keep"})


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 12), (3, 9), (5, 6), (4, 5), (0, 5), (11, 12), (5, 5)]
)
@pytest.mark.parametrize(
    ("make", "fields"), [(make_records, FIELDS), (encoded_records, IMAGE_FIELDS)]
)
def test_several_stores_are_one_after_the_other(start, stop, make, fields):
    paths = [_write("x.h5", make(5), fields), _write("y.lmdb", make(7), fields)]
    records, keys = StoreInput(paths).read(start, stop)
    parts = [plain(make(5)), plain(make(7))]
    assert plain(records) == {
        name: (parts[0][name] + parts[1][name])[start:stop] for name in fields
    }
    assert keys == [*(f"k{n}" for n in range(5)), *(f"k{n}" for n in range(7))][start:stop]


def test_a_label_of_a_box_that_is_no_class_is_named():
    fields = {"label": Field("int64", (None,))}
    records = {"label": [np.array([0, 1]), np.array([0, 2])]}
    paths = [_write(path, records, fields, ["a", "b"]) for path in ("x.h5", "y.h5")]
    with pytest.raises(DataError, match=r"D161.*k1.*none of the store's 2 classes"):
        StoreInput(paths).read(2, 4)


def test_classes_are_united_by_name_and_labels_renumbered():
    paths = [
        _write("x.h5", make_records(3), classes=["cat", "dog", "cow"]),
        _write("y.h5", make_records(3), classes=["ant", "cow", "cat"]),
    ]
    source = StoreInput(paths)
    assert source.manifest.classes == ["cat", "dog", "cow", "ant"]
    assert source.read(0, 6).records["label"].tolist() == [0, 1, 2, 3, 2, 0]
    assert source.read(0, 6).records["label"].dtype == np.int64


def test_a_label_that_is_no_class_is_named():
    records = make_records(3) | {"label": np.array([0, 1, 7])}
    paths = [_write("x.h5", records), _write("y.h5", make_records(3))]
    with pytest.raises(DataError, match=r"D161.*x\.h5"):
        StoreInput(paths).read(0, 3)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"fields": {**FIELDS, "image": Field("uint8", (3, 4, 5))}},
            r"D169.*y\.h5.*\[3, 4, 5\].*x\.h5.*\[3, 4, 4\]",
        ),
        ({"fields": {"label": FIELDS["label"]}}, r"D169.*y\.h5"),
        ({"classes": ()}, r"D169.*y\.h5.*only one"),
    ],
)
def test_stores_that_cannot_be_one_are_named(other, words):
    records = make_records(3)
    fields = other.get("fields", FIELDS)
    wanted = {name: np.resize(records[name], (3, *field.shape)) for name, field in fields.items()}
    paths = [_write("x.h5", records), _write("y.h5", wanted, **{"fields": fields, **other})]
    with pytest.raises(DataError, match=words):
        _ = StoreInput(paths).manifest


def test_labels_that_grow_too_large_for_their_type_are_refused():
    fields = {"label": Field("uint8", ())}
    for name, start in (("x.h5", 0), ("y.h5", 200)):
        _write(
            name,
            {"label": np.zeros(2, np.uint8)},
            fields,
            [str(start + number) for number in range(200)],
        )
    with pytest.raises(DataError, match=r"D169.*400 classes do not fit uint8"):
        _ = StoreInput(["x.h5", "y.h5"]).manifest


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_damage_is_not_packed_again(path):
    _write(path, make_records(50))
    data = bytearray(Path(path).read_bytes())
    place = data.index(make_records(50)["image"][30].tobytes())
    data[place + 5] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(DataError, match=rf"D166.*{path}.*30.*k30.*CRC32.*verify"):
        StoreInput(path).read(0, 50)


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_records_that_are_left_out_leave_the_other_keys_as_they_are(path):
    fields = {"x": Field("float32", (4,))}
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.save("x.npy", values)
    pack(packing(path, ArraysInput("x.npy", None)))
    # LMDB may hold an older copy of a page, too.
    damaged = Path(path).read_bytes().replace(values[3].tobytes(), values[4].tobytes())
    Path(path).write_bytes(damaged)
    packed = pack(packing(f"new-{path}", StoreInput(path), on_error="skip"))
    assert [bad.item for bad in packed.bad] == [3]
    store = open_store(f"new-{path}")
    assert (store.manifest.fields, store.manifest.first_key) == (fields, None)
    assert [store.key(index) for index in range(9)] == list("012456789")


def test_keys_that_are_numbers_stay_numbers_when_stores_are_packed_again():
    np.save("x.npy", np.zeros((10, 2)))
    pack(packing("x.h5", ArraysInput("x.npy", None)))
    pack(packing("y.lmdb", StoreInput("x.h5")))
    assert open_store("y.lmdb").manifest.first_key == 0
    pack(packing("z.h5", StoreInput(["x.h5", "y.lmdb"])))
    store = open_store("z.h5")
    assert store.manifest.first_key is None
    assert [store.key(index) for index in (0, 9, 10, 19)] == ["0", "9", "0", "9"]


def test_a_missing_store_is_named():
    with pytest.raises(DataError, match=r"D101.*gone\.h5"):
        _ = StoreInput(["gone.h5"]).manifest


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_store_that_is_replaced_meanwhile_is_not_mixed_with_the_new_one(path):
    source = StoreInput([_write("other.h5", make_records(2)), _write(path, make_records(3))])
    source.read(0, 5)
    spans = [(0, 2), (1, 3), (2, 5)]  # of the first store, both, the second
    before = [item_stamps(source, *span) for span in spans]
    _write(path, {**make_records(3), "label": np.arange(3)[::-1]})
    after = [item_stamps(source, *span) for span in spans]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False]
    with pytest.raises(DataError, match=rf"D117.*{path}"):
        source.read(0, 5)


def test_the_manifest_tells_whether_a_folder_of_files_has_changed():
    pack(packing("x.h5", Input(10), one_file=False))
    assert list(StoreInput("x.h5").item_files(3)) == ["x.h5/manifest.json"]


def test_no_store_is_an_error():
    with pytest.raises(DataError, match=r"D110.*input\.path"):
        StoreInput([])


def test_a_store_packed_again_holds_the_same():
    source = StoreInput(_write("x.h5", make_records(7)))
    writer = LMDBWriter("y.lmdb", fields=source.manifest.fields, num_records=7)
    for start in range(0, 7, 3):
        writer.write(*source.read(start, min(start + 3, 7)))
    writer.close(source.manifest)
    again = open_store("y.lmdb")
    assert again.manifest.digest == open_store("x.h5").manifest.digest != ""
    assert plain(again.read(torch.arange(7))) == plain(make_records(7))
    again.close()


def test_it_reads_the_same_in_another_process():
    source = StoreInput([_write("x.h5", make_records(3)), _write("y.lmdb", make_records(3))])
    _ = source.manifest
    assert str(pickle.loads(pickle.dumps(source)).read(1, 5)) == str(source.read(1, 5))
    assert "y.lmdb" in source.name(4)
