import pickle

import numpy as np
import pytest

from framework.errors import DataError
from framework.input.lmdb import LMDBInput
from tests.contract.cases import jpeg
from tests.store.test_foreign import scene_text, write_lmdb

FIELDS = {"image": "image-%09d", "label": "label-%09d"}


def test_keys_of_one_number_are_one_record():
    source = LMDBInput(scene_text(), FIELDS)
    records, keys = source.read(0, 3)
    assert (records["label"].tolist(), source.manifest.classes) == ([0, 1, 0], ["cat", "dog"])
    assert records["image"] == [jpeg(number, 8, 8) for number in (1, 2, 3)]
    assert keys == [f"image-{number:09d}" for number in (1, 2, 3)]


def test_numbers_are_in_their_order_and_integer_labels_stay():
    values = {f"y{number}": str(number).encode() for number in (2, 10, 1)} | {
        f"x{number}": b"0.5" for number in (2, 10, 1)
    }
    source = LMDBInput(write_lmdb("x.lmdb", values), {"x": "x%d", "label": "y%d"})
    records, keys = source.read(0, 3)
    assert (records["label"].tolist(), keys) == ([1, 2, 10], ["x1", "x2", "x10"])
    assert (records["x"].tolist(), records["x"].dtype) == ([0.5] * 3, np.float32)
    assert len(source.manifest.classes) == 11


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "picture-%d"}, r"D110.*the first keys: image-000000001"),
        ({"image": "image-%09d", "n": "num-%s"}, "D160.*records lack a field"),
    ],
)
def test_what_does_not_fit_is_named(fields, words):
    source = LMDBInput(scene_text(), fields)
    with pytest.raises(DataError, match=words):
        source.read(0, 3)


def test_texts_and_byte_strings_are_values_too():
    path = write_lmdb("x.lmdb", {"t-1": "Zürich".encode(), "t-2": b"7", "b-1": b"\0", "b-2": b""})
    source = LMDBInput(path, {"line": "t-%d", "file": "b-%d"})
    source.kinds = {"line": "text", "file": "bytes"}
    assert [field.kind for field in source.manifest.fields.values()] == ["text", "bytes"]
    records = pickle.loads(pickle.dumps(source)).read(0, 2).records
    assert [bytes(line).decode() for line in records["line"]] == ["Zürich", "7"]
    assert [bytes(file) for file in records["file"]] == [b"\0", b""]


@pytest.mark.parametrize("values", [(b"a", b"7"), (b"7", b"a")])
def test_texts_among_numbers_say_how_to_keep_both(values):
    path = write_lmdb("x.lmdb", {f"t-{number}": value for number, value in enumerate(values)})
    source = LMDBInput(path, {"t": "t-%d"})
    with pytest.raises(DataError, match=r"D167.*add 'input\.kinds={t: text}'"):
        source.read(0, 2)


@pytest.mark.parametrize(
    ("value", "kind"), [(b"long " * 500, "text"), (b"a\0b", "text"), (b"\xff\0", "bytes")]
)
def test_a_value_of_no_guessed_kind_says_how_to_keep_it(value, kind):
    source = LMDBInput(write_lmdb("x.lmdb", {"t-1": value}), {"t": "t-%d"})
    with pytest.raises(DataError, match=rf"D106.*add 'input\.kinds={{t: {kind}}}'"):
        source.read(0, 1)
