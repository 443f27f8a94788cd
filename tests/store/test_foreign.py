import re
import shlex

import h5py
import lmdb
import numpy as np
import pytest
import torch

from framework.errors import DataError
from framework.store.foreign import key_expression, number_of
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


def test_the_command_for_data_sets_of_records_packs_them():
    folders = 30
    with h5py.File("corpus.h5", "w") as file:
        for number in range(folders):
            file[f"spk{number}/utt{number}"] = np.zeros(number + 1, "i2")
    store = advised("corpus.h5", paceline("inspect", "corpus.h5").err)
    assert store.read(torch.arange(folders))["value"].lengths.tolist() == sorted(
        range(1, folders + 1), key=lambda length: f"spk{length - 1}/"
    )
    assert store.key(1) == "spk1/utt1"
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


@pytest.mark.parametrize(
    "text",
    ["1" * 19, "-" + "9" * 30, "12_3", "1_2.5", "1e39", "-4e38", "\u0661\u0662", "", ".", "0x1f"],
)
@pytest.mark.filterwarnings("error")
def test_texts_that_would_become_another_number_stay_texts(text):
    assert number_of(text) is None
