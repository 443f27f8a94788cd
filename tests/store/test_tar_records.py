"""Which members of a shard are which field; tests/input/test_tar.py has the rules of labels."""

import numpy as np
import pytest

from framework.errors import DataError
from framework.store.tar_records import TarRecords
from tests.contract.cases import jpeg, write_tar


def _records(members, fields=None, group="data", path="x.tar", **options):
    write_tar(path, members)
    return TarRecords(path, fields, options.get("classes"), options.get("pattern"), group)


def test_members_of_a_record_may_lie_apart():
    records = _records([("a.jpg", jpeg(0)), ("b.jpg", jpeg(1)), ("b.cls", b"1"), ("a.cls", b"0")])
    assert [records.listed.key(index) for index in range(2)] == ["a", "b"]
    assert records.labels is not None
    assert records.labels[0].tolist() == [0, 1]
    assert records.read("image", 0) == jpeg(0)


def test_values_are_files_arrays_and_numbers():
    members = [("a.jpg", jpeg(0)), ("a.txt", b" 0.5\n"), ("b.jpg", jpeg(1)), ("b.txt", b"word")]
    records = _records(members, {"image": "jpg", "x": "txt"})
    assert records.value("image", 0) == jpeg(0)
    assert np.asarray(records.value("x", 0)).tolist() == 0.5
    with pytest.raises(DataError, match=r"D162.*b\.jpg: x: b'word' is not a number.*\{x: text\}"):
        records.value("x", 1)


def test_texts_that_are_not_utf8_are_named():
    records = _records([("a.txt", b"a"), ("b.txt", b"\xff")], {"x": "txt"})
    assert records.value("x", 0) == "a"
    with pytest.raises(DataError, match=r"D162.*b\.txt: x: is not UTF-8.*data\.kinds=\{x: bytes\}"):
        records.value("x", 1)


def test_a_label_may_be_a_text():
    records = TarRecords(
        write_tar("x.tar", [("a.txt", b"word")]),
        {"label": "txt"},
        None,
        None,
        kinds={"label": "text"},
    )
    assert records.labels is None
    assert records.value("label", 0) == "word"
