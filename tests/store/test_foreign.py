import io
import os
import re
import shlex
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.store import folder_store, foreign, hdf5_store, parquet_store
from framework.store.lmdb_store import LMDBStore, key_expression
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.conftest import make_records, write_store
from tests.contract.cases import encoded_records, jpeg, write_parquet, write_tar


def write_lmdb(path, values, folder=False):
    """Write an LMDB file as any other program does, and return its path."""
    with (
        lmdb.open(path, subdir=folder, lock=False, map_size=1 << 24, max_dbs=0) as environment,
        environment.begin(write=True) as txn,
    ):
        for key, value in values.items():
            txn.put(key.encode() if isinstance(key, str) else key, value)
    return path


def scene_text(count=3):
    """Write images and labels under numbered keys, and their number, as for scene text."""
    values = {"num-samples": str(count).encode()}
    for number in range(1, count + 1):
        values[f"image-{number:09d}"] = jpeg(number, 8, 8)
        values[f"label-{number:09d}"] = b"cat" if number % 2 else b"dog"
    return write_lmdb("words.lmdb", values)


def write_hdf5(path="their file.h5"):
    with h5py.File(path, "w") as file:
        file["train/images"] = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
        file.create_dataset(
            "train/label", data=np.array([0, 2, 1, 0, 2]), chunks=(2,), compression="gzip"
        )
        file["mean"] = np.zeros(3)
        file["names"] = np.array([b"a", b"b"])
        file["scalar"] = 3
    return path


def advised(path, error):
    """Run the command that an error's text advises, and return the store that it packed."""
    command = re.search(r"error\[D103\]: .*; pack it: (paceline pack .*)$", error, re.MULTILINE)
    assert command is not None, error
    words = shlex.split(command.group(1))
    done = paceline(*words[1:], "workers=0")
    assert done.code == 0, (command.group(1), done.err)
    return open_store(words[-1].removeprefix("output.path=").strip('"'))


def test_the_command_for_an_hdf5_file_packs_it():
    path = write_hdf5()
    done = paceline("inspect", path)
    assert done.code == 3, done.err
    store = advised(path, done.err)
    records = store.read(torch.arange(5))
    assert records["label"].tolist() == [0, 2, 1, 0, 2]
    assert records["images"].shape == (5, 4, 4, 3)
    store.close()


def test_the_command_for_an_lmdb_file_packs_it():
    path = scene_text()
    done = paceline("inspect", path)
    assert done.code == 3, done.err
    store = advised(path, done.err)
    assert store.manifest.classes == ["cat", "dog"]
    assert store.read(torch.arange(3))["label"].tolist() == [0, 1, 0]
    assert bytes(store.read(torch.arange(3))["image"][2]) == jpeg(3, 8, 8)
    assert store.key(0) == "image-000000001"
    store.close()


@pytest.mark.parametrize("name", ["x.h5", "x.lmdb"])
def test_no_command_is_suggested_if_none_works(name):
    if name == "x.lmdb":
        write_lmdb(name, {"a": b"\x80\x03pickled"})
    else:
        with h5py.File(name, "w") as file:
            file["names"] = np.zeros(3, [("a", "f4"), ("b", "S3")])
    with pytest.raises(DataError, match=r"D103.*read it with input=function") as caught:
        _ = open_store(name).manifest
    assert "pack it: paceline" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "key", "part"),
    [
        *(("image-%09d", "image-000000012", "000000012"), ("%d.jpg", "7.jpg", "7")),
        *(("50%%-%s", "50%-ü", "ü"), ("a.%d", "ab1", None), ("%03d", "12", None)),
    ],
)
def test_a_pattern_finds_what_the_keys_of_a_record_share(pattern, key, part):
    match = key_expression(pattern).fullmatch(key)
    assert (match and match.group(1)) == part


@pytest.mark.parametrize(
    "text",
    ["1" * 19, "-" + "9" * 30, "12_3", "1_2.5", "1e39", "-4e38", "\u0661\u0662", "", ".", "0x1f"],
)
@pytest.mark.filterwarnings("error")
def test_texts_that_would_become_another_number_stay_texts(text):
    assert foreign.number_of(text) is None


@pytest.fixture
def files():
    """Write a file or a folder of each format, and return paths by the choice that reads them."""
    os.makedirs("tars")
    os.makedirs("rows")
    tar = write_tar("tars/x.tar", [("a.jpg", jpeg(0))])
    parquet = write_parquet("rows/x.parquet", encoded_records(3))
    packed = {
        f"packed.{end}": write_store(f"packed.{end}", make_records(3)) for end in ("h5", "lmdb")
    }
    return {
        "tar": (tar, "tars"),
        "parquet": (parquet, "rows"),
        "hdf5": (packed["packed.h5"],),
        "lmdb": (packed["packed.lmdb"],),
    }


def test_formats_are_recognized_by_content(files):
    for choice, paths in files.items():
        assert [foreign.format_of(path).choice for path in paths] == [choice] * len(paths)
    Path("text").write_text("just text")
    os.makedirs("empty")
    Path("nothing").touch()
    assert [foreign.format_of(name) for name in ("text", "nothing", "empty", "gone", "*.tar")] == [
        None
    ] * 5


@pytest.mark.parametrize("choice", ["tar", "parquet"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_packed_stores_choice_names_the_right_one_and_the_command_that_packs(
    files, choice, place
):
    path = files[choice][place]
    words = rf"D103.*is a .*data={choice}, .*: paceline pack input={choice} input.path={path}"
    opened = [open_store] if place else [hdf5_store.HDF5Store, LMDBStore, open_store]
    for make in opened:
        with pytest.raises(DataError, match=words):
            _ = make(path).manifest


@pytest.mark.parametrize(
    ("store", "own", "other"), [(hdf5_store.HDF5Store, "hdf5", "lmdb"), (LMDBStore, "lmdb", "hdf5")]
)
def test_a_store_of_the_other_packed_format_is_named(files, store, own, other):
    words = rf"D103.*data={own} does not read; choose data={other}"
    with pytest.raises(DataError, match=words):
        _ = store(files[other][0]).manifest


IDX = b"\0\0\x08"


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        pytest.param(
            "x", b"\x93NUMPY", "input=arrays input.path=x output.path=x.packed.h5", id="array"
        ),
        pytest.param(
            "a b.csv", b"image,label\n", """input=list 'input.path="a b.csv"'""", id="csv"
        ),
        pytest.param(
            "x.tfrecord-00000",
            b"\1",
            "input=tfrecord .*'input.features={image: image/encoded,",
            id="tfrecord",
        ),
        pytest.param(
            "train-labels-idx1-ubyte",
            IDX + b"\1",
            "input=idx input.images=train-images-idx3-ubyte input.labels=train-labels-idx1-ubyte",
            id="usual names of idx",
        ),
    ],
)
def test_files_that_only_packing_reads_are_answered_with_its_command(name, head, words):
    Path(name).write_bytes(head)
    for make in (hdf5_store.HDF5Store, LMDBStore, open_store):
        with pytest.raises(DataError, match=rf"D103.*pack it: paceline pack {words}"):
            _ = make(name).manifest
    with pytest.raises(DataError, match="D103"):
        parquet_store.ParquetStore(name)


def test_a_folder_of_images_is_none_of_them(files):
    for choice in ("tar", "parquet"):
        for path in files[choice]:
            with pytest.raises(DataError, match=rf"D103.*data=folder does not read.*data={choice}"):
                folder_store.FolderStore(path)
    foreign.refuse_other("empty", "folder")


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6.0).reshape(2, 3), np.array(3), np.empty((0, 2))),
        np.asfortranarray(np.ones((2, 3), ">i2")),
    ],
)
def test_an_array_file_gives_its_numbers_in_our_byte_order(array):
    numbers = foreign.array_of_npy(npy(array), "x")
    assert np.array_equal(numbers, array)
    assert numbers.dtype == array.dtype.newbyteorder("=")
    assert numbers.flags.c_contiguous


@pytest.mark.parametrize(
    "array",
    [np.array([{}]), np.array(["a"]), np.zeros(2, "f8,i4"), np.array("2020-01-01", "M8[s]")],
)
def test_what_is_not_numbers_is_refused_and_nothing_unpickled(array):
    with pytest.raises(DataError, match=r"D112.*x\.npy: not plain arrays"):
        foreign.array_of_npy(npy(array), "x.npy")


def test_a_header_that_promises_more_than_there_is_takes_no_memory():
    data = npy(np.zeros(5)).replace(b"(5,), ", b"(5" + b"0" * 12 + b",),", 1)
    with pytest.raises(DataError, match="D112"):
        foreign.array_of_npy(data, "x.npy")


@pytest.mark.parametrize("given", [["boxes"], {"x": "box"}, {"x": None}, "boxes"])
def test_kinds_that_do_not_exist_are_refused(given):
    with pytest.raises(ConfigError, match=r"C179.*input\.kinds.*boxes or points"):
        foreign.checked_kinds(given)


def test_boxes_are_rows_of_four_floats():
    boxes = foreign.of_kind([[1, 2, 3, 4]], "boxes", "x")
    assert (boxes.dtype, boxes.shape) == (np.float32, (1, 4))
    assert foreign.of_kind([], "boxes", "x").shape == (0, 4)
    assert foreign.field_of_kind(boxes, "boxes") == Field("float32", (None, 4), kind="boxes")


@given(st.lists(st.text(), min_size=1))
def test_names_are_numbered_in_byte_order_whatever_theirs_is(names):
    numbers, classes = foreign.number_classes(names, None, "x")
    assert [classes[number] for number in numbers] == names
    assert foreign.number_classes(names[::-1], None, "x")[1] == classes


def test_numbers_may_be_named():
    assert foreign.numbered_classes(2, None, "x") == ["0", "1", "2"]
    assert foreign.numbered_classes(1, ["a", "b", "c"], "x") == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"D161.*x: has label 3, but input.classes names 2"):
        foreign.numbered_classes(3, ["a", "b"], "x")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "not a regular expression"), ("n", "0 groups"), ("(a)(b)", "2 groups")],
)
def test_a_pattern_has_one_group(pattern, words):
    with pytest.raises(ConfigError, match=rf"C160.*{words}"):
        foreign.class_pattern(pattern)
