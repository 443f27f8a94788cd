import contextlib
import os
import re
import shlex
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.errors import DataError, PacelineError
from framework.input.hdf5 import HDF5Input
from framework.input.lmdb import LMDBInput
from framework.store.foreign import (
    ForeignLMDB,
    field_name,
    free_name,
    key_expression,
    number_of,
)
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.contract.cases import jpeg


def write_lmdb(path, values, folder=False):
    """Write an LMDB file as any other program does, and return its path."""
    with (
        lmdb.open(path, subdir=folder, lock=False, map_size=1 << 24, max_dbs=0) as environment,
        environment.begin(write=True) as txn,
    ):
        for key, value in values.items():
            txn.put(key.encode() if isinstance(key, str) else key, value)
    return path


def scene_text(count=3, folder=False):
    """Write images and labels under numbered keys, and their number, as for scene text."""
    values = {"num-samples": str(count).encode()}
    for number in range(1, count + 1):
        values[f"image-{number:09d}"] = jpeg(number, 8, 8)
        values[f"label-{number:09d}"] = b"cat" if number % 2 else b"dog"
    return write_lmdb("words.lmdb", values, folder)


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


@pytest.mark.parametrize("words", [("inspect",), ("train", "data.val=null")])
def test_the_command_for_an_hdf5_file_packs_it(words):
    path = write_hdf5()
    word = f'data.train="{path}"' if words[0] == "train" else path
    done = paceline(*words, word)
    assert done.code == 3, done.err
    store = advised(path, done.err)
    records = store.read(torch.arange(5))
    assert records["label"].tolist() == [0, 2, 1, 0, 2]
    assert records["images"].shape == (5, 4, 4, 3)
    store.close()


@pytest.mark.parametrize("folder", [False, True])
def test_the_command_for_an_lmdb_file_packs_it(folder):
    path = scene_text(folder=folder)
    done = paceline("inspect", path)
    assert done.code == 3, done.err
    store = advised(path, done.err)
    assert store.manifest.classes == ["cat", "dog"]
    assert store.read(torch.arange(3))["label"].tolist() == [0, 1, 0]
    assert bytes(store.read(torch.arange(3))["image"][2]) == jpeg(3, 8, 8)
    assert store.key(0) == "image-000000001"
    store.close()


def test_the_command_for_recognized_text_keeps_the_texts():
    """As CRNN and deep-text-recognition-benchmark write them."""
    texts = ["Zürich", "2024", " a ", "b", "007", "x!", "the", "the", "end"]
    values = {"num-samples": str(len(texts)).encode()}
    for number, text in enumerate(texts, 1):
        values[f"image-{number:09d}"] = jpeg(number, 8, 8)
        values[f"label-{number:09d}"] = text.encode()
    path = write_lmdb("ocr.lmdb", values, folder=True)
    done = paceline("train", f"data.train={path}", "data.val=null")
    assert "input.count=num-samples" in done.err
    store = advised(path, done.err)
    read = store.read(torch.arange(len(texts)))["text"].arrays()
    assert [bytes(text).decode() for text in read] == texts
    store.close()


def test_the_command_for_long_texts_names_their_kind():
    path = write_lmdb("x.lmdb", {f"t{number}": b"long " * 500 for number in range(3)})
    store = advised(path, paceline("inspect", path).err)
    assert store.manifest.fields["text"].kind == "text"
    store.close()


@pytest.mark.parametrize("folders", [3, 30])
def test_the_command_for_data_sets_of_records_packs_them(folders):
    with h5py.File("corpus.h5", "w") as file:
        for number in range(folders):
            file[f"spk{number}/utt{number}"] = np.zeros(number + 1, "i2")
    store = advised("corpus.h5", paceline("inspect", "corpus.h5").err)
    assert store.read(torch.arange(folders))["value"].lengths.tolist() == sorted(
        range(1, folders + 1), key=lambda length: f"spk{length - 1}/"
    )
    assert store.key(1) == "spk1/utt1"
    store.close()


def test_keys_without_numbers_are_names():
    path = write_lmdb("photos.lmdb", {"alice": jpeg(0, 8, 8), "bob": jpeg(1, 8, 8)})
    store = advised(path, paceline("inspect", path).err)
    assert (list(store.manifest.fields), store.key(1)) == (["image"], "bob")
    store.close()


def test_texts_are_classes():
    store = advised(
        "x.lmdb",
        paceline(
            "inspect", write_lmdb("x.lmdb", {"x1": b"cat", "x2": b"dog", "y1": b"3", "y2": b"4"})
        ).err,
    )
    assert (list(store.manifest.fields), store.manifest.classes) == (["label", "y"], ["cat", "dog"])
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


def test_values_of_any_size_and_key_are_found():
    values = {
        b"k" * length: os.urandom(size)
        for length, size in zip(range(1, 400), range(1, 40_000, 100), strict=False)
    }
    file = ForeignLMDB(write_lmdb("x.lmdb", values))
    assert {key.encode(): file.read(place) for place, key in enumerate(file.keys)} == values


def test_a_file_with_named_databases_is_refused():
    with lmdb.open("x.lmdb", subdir=False, lock=False, max_dbs=2) as environment:
        environment.open_db(b"one")
    with pytest.raises(DataError, match=r"D102.*named databases"):
        ForeignLMDB("x.lmdb")


@pytest.mark.parametrize(
    ("pattern", "key", "part"),
    [
        ("image-%09d", "image-000000012", "000000012"),
        ("%d.jpg", "7.jpg", "7"),
        ("50%%-%s", "50%-ü", "ü"),
        ("a.%d", "ab1", None),
        ("%03d", "12", None),
    ],
)
def test_a_pattern_finds_what_the_keys_of_a_record_share(pattern, key, part):
    match = key_expression(pattern).fullmatch(key)
    assert (match and match.group(1)) == part


def test_names_of_fields_and_files_are_free():
    assert field_name("image-", {}) == "image"
    assert field_name("image", {"image": "x"}) == "image_2"
    assert field_name("00/1", {}) == "field_00_1"
    assert free_name("a/x.h5") == "a/x.packed.h5"
    open("x.packed.h5", "w").close()
    assert free_name("x.h5") == "x.packed1.h5"
    here = os.getcwd()
    assert free_name(".") == f"{here}.packed.h5"
    assert free_name("..") == f"{os.path.dirname(here)}.packed.h5"


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["x.h5", "x.lmdb"]),
    st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=30),
)
def test_a_damaged_file_is_read_or_one_error(name, flips):
    path = write_hdf5("good.h5") if name == "x.h5" else scene_text()
    data = bytearray(Path(path).read_bytes())
    Path(path).unlink()
    for place, value in flips:
        data[int(place * min(len(data), 20_000))] = value
    Path(name).write_bytes(data)
    with contextlib.suppress(PacelineError):  # any other exception fails
        _ = open_store(name).manifest
    with contextlib.suppress(PacelineError):
        source = HDF5Input(name) if name == "x.h5" else LMDBInput(name, {"x": "%s"})
        source.read(0, source.manifest.num_records)


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), (" -12\n", -12), ("+9" + "0" * 16, 9 * 10**16), ("9" * 18, 10**18 - 1)],
)
def test_whole_numbers_are_int64(text, value):
    assert (number_of(text), number_of(text).dtype) == (value, np.int64)


@pytest.mark.parametrize("text", ["0.5", ".5", "5.", "-1e3", "1E-2", "3.4028234e38", "nan", "-inf"])
def test_other_numbers_are_float32(text):
    assert number_of(text).dtype == np.float32
    assert np.array_equal(number_of(text), np.float32(float(text)), equal_nan=True)


@pytest.mark.parametrize(
    "text",
    ["1" * 19, "-" + "9" * 30, "12_3", "1_2.5", "1e39", "-4e38", "\u0661\u0662", "", ".", "0x1f"],
)
@pytest.mark.filterwarnings("error")
def test_texts_that_would_become_another_number_stay_texts(text):
    assert number_of(text) is None
