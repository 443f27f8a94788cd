from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.input.store import read_new_values

FIELDS = {"image": Field("uint8", (3, 4, 4)), "label": Field("int64", ())}
FIELDS |= {"ok": Field("bool", ()), "score": Field("float32", ()), "small": Field("int8", ())}
FIELDS |= {"note": Field("uint8", (None,), kind="text")}
KEYS = [["a/0", "a/1"], ["a/2", "a/3"]]


def new_values(*lines, path="t.csv", classes=("cat", "dog", "cow"), keys=KEYS):
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    manifest = Manifest(sum(map(len, keys)), FIELDS, list(classes))
    return read_new_values(path, manifest, keys)


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("t.csv", ["key,label", "a/3,dog", "a/0,cow"]),
        ("t.csv", ["label,index", "dog,3", "2,0"]),
        ("t.tsv", ["label\tkey", "1\ta/3", "cow\ta/0"]),
    ],
    ids=["key", "index", "tabs"],
)
def test_rows_name_records_by_key_or_number(path, lines):
    new = new_values(*lines, path=path)
    assert new.records.tolist() == [0, 3]
    assert new.values["label"].tolist() == [2, 1]


def test_numbers_truth_values_and_texts_have_the_types_of_their_fields():
    new = new_values("index,ok,score,small,note", "1,True,-2.5,-128,Zürich", "0,0,inf,127,")
    assert {name: new.values[name].dtype for name in ("ok", "score", "small")} == {
        "ok": np.bool_,
        "score": np.float32,
        "small": np.int8,
    }
    assert [new.values[name].tolist() for name in ("ok", "score", "small")] == [
        *([False, True], [np.inf, -2.5], [127, -128]),
    ]
    assert [bytes(text).decode() for text in new.values["note"]] == ["", "Zürich"]


@pytest.mark.parametrize(
    "header",
    ["0,1", "label", "key,index,label", "key", "key,label,label"],
    ids=["none", "no key", "both", "no field", "twice"],
)
def test_a_header_that_names_no_record_or_no_field_is_refused(header):
    with pytest.raises(DataError, match=rf"D253.*t\.csv: its header is '{header}'; give it"):
        new_values(header, "1,2,3")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["index,label", "0,cat", "1"], r"D253.*t\.csv: line 3: has 1 columns, its header 2"),
        (["index,ok", "0,yes"], r"D253.*line 2: 'yes' is not bool; correct the column ok"),
        (["index,score", "0,1e39"], r"D253.*'1e39' is not float32"),
        (["index,small", "0,128"], r"D253.*'128' is not int8"),
        (["index,note", "0,\udcff"], r"D253.*is not UTF-8 text"),
        (["index,image", "0,7"], r"D253.*its column image is not a field with one number or text"),
        (["index,x", "0,7"], r"D253.*choose from label, ok, .*input\.add=MODULE\.FUNCTION makes"),
    ],
    ids=["short", "bool", "huge", "large", "bytes", "image", "new field"],
)
def test_a_cell_or_column_that_does_not_fit_is_named(lines, words):
    with pytest.raises(DataError, match=words):
        new_values(*lines)


@pytest.mark.parametrize("label", ["bird", "3", "-1", "9" * 50])
def test_a_label_that_is_no_class_is_refused(label):
    words = r"D161.*t\.csv: line 3: '.*neither a class.*choose from cat, dog, cow; for a new class"
    with pytest.raises(DataError, match=words):
        new_values("index,label", "1,cat", f"0,{label}")


@pytest.mark.parametrize("index", ["4", "-1", "x", "1.0", "9" * 30])
def test_a_number_of_no_record_is_refused(index):
    with pytest.raises(DataError, match=r"D254.*line 2.*not the number of a record; give 0 to 3"):
        new_values("index,label", f"{index},cat")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a/1,cat", "b,cat"], r"D254.*line 3: 'b' is not the key of a record"),
        (["a/1,cat", "a/0,cat", "a/1,dog"], r"D254.*line 4: names the record 'a/1' again"),
        (["a/0,cat", "twice,cat"], r"D254.*line 3: names 'twice', the key of records 4 and 5"),
    ],
    ids=["unknown", "again", "of two records"],
)
def test_a_row_names_one_record_that_no_other_row_names(rows, words):
    with pytest.raises(DataError, match=words):
        new_values("key,label", *rows, keys=[*KEYS, ["twice", "twice"]])
