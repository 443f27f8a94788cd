import os
import shlex
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.errors import ConfigError, DataError
from framework.input.list import ListInput
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.contract.cases import jpeg

CSV = "image,label\n1.jpg,dog\n2.jpg,cat\n"


def _input(text, name="in/list.csv", columns=None, **options):
    Path("in").mkdir(exist_ok=True)
    for number in range(4):
        Path(f"in/{number}.jpg").write_bytes(jpeg(number))
    Path(name).write_bytes(text if isinstance(text, bytes) else os.fsencode(text))
    usual = {"header": True, "root": None, "allow_outside": False}
    usual |= {"classes": None, "label_pattern": None}
    return ListInput(name, columns=columns, **{**usual, **options})


def _all(source):
    return source.read(0, source.manifest.num_records)


@pytest.mark.parametrize(
    "text",
    [
        *(CSV, CSV.replace("\n", "\r\n"), "\ufeff" + CSV, CSV.replace("\n", "\n\n")),
        '"image","label"\n"1.jpg","dog"\n"2.jpg",cat\n',
    ],
)
def test_rows_become_records_in_the_tables_order(text):
    source = _input(text)
    records, keys = _all(source)
    assert (keys, source.manifest.classes) == (["1.jpg", "2.jpg"], ["cat", "dog"])
    assert records["image"] == [jpeg(1), jpeg(2)]
    assert records["label"].tolist() == [1, 0]


def test_columns_choose_by_name_and_the_others_are_left():
    source = _input(
        "id,file,angle,count\n7,1.jpg,0.5,3\n8,0.jpg,-1e3,-4\n",
        columns={"image": "path:file", "angle": "float", "n": "int:count"},
    )
    records, keys = _all(source)
    assert keys == ["1.jpg", "0.jpg"]
    assert (records["angle"].tolist(), records["angle"].dtype) == ([0.5, -1000], np.float32)
    assert (records["n"].tolist(), records["n"].dtype) == ([3, -4], np.int64)


@pytest.mark.parametrize(
    "path", ["../outside.jpg", "/etc/hostname", "x/../../outside.jpg", "1.jpg\0"]
)
def test_paths_out_of_the_root_are_refused(path):
    with pytest.raises(DataError, match=r"D165.*line 3.*not under.*allow_outside"):
        _ = _input(f"image,label\n1.jpg,a\n{path},b\n").manifest


def test_a_link_out_of_the_root_is_not_opened():
    source = _input("image,label\n1.jpg,a\nlink.jpg,b\n")
    Path("secret.jpg").write_bytes(jpeg(9))
    os.symlink("../secret.jpg", "in/link.jpg")
    with pytest.raises(DataError, match=r"D165.*line 3.*secret\.jpg' is not under"):
        source.read(0, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.jpg,a\n2.jpg,b\n", r"D164.*'1\.jpg', which cannot be a field's name.*header=false"),
        ("image,label\n1.jpg\n", r"D164.*line 2: has 1 columns, 2 are wanted"),
        ("a,b\n1,2\n3,4,x\n", r"D164.*line 3: has 3 columns, the first line 2; .*quote"),
        ("a;b\n1;2\n", r"D164.*separated by semicolons: 'a;b'; separate them by commas"),
        ("a,b\n1,2\n".encode("utf-16"), r"D164.*is a text in UTF-16; convert it to UTF-8"),
        ('{"image": "1.jpg", "label": 1}\n', r"D164.*holds lines of JSON.*convert it to CSV, or"),
        ('image,label\n"1.jpg,a\n', r"D164.*not a table"),
        ("image,label\n", r"D110.*no row"),
        (b"image,text\n1.jpg,\xff\n", r"D162.*line 2.*text is not UTF-8"),
        ("image,label\ngone.jpg,a\n", r"D101.*in/gone\.jpg"),
    ],
)
def test_what_is_no_such_table_is_named(text, words):
    with pytest.raises(DataError, match=words):
        _ = _input(text).manifest


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("int", text) for text in ("1.5", "9" * 30, "1_000")),
        *(("float", text) for text in ("nan", "", "1e39")),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_number_is_named(kind, text):
    with pytest.raises(DataError, match=r"D162.*line 2"):
        _ = _input(f"image,n\n1.jpg,{text}\n", columns={"image": "path", "n": kind}).manifest


@pytest.mark.parametrize(
    ("bad", "words"), [("2.jpg,NaN,b", "'NaN' is not finite"), ("2.jpg,2,", "no class in ''")]
)
def test_packing_can_skip_rows_with_bad_cells(bad, words):
    _input(f"image,age,label\n1.jpg,1,b\n{bad}\n0.jpg,3,a\n")
    done = paceline(
        *("pack", "input=list", "input.path=in/list.csv"),
        *("input.columns={image: path, age: float, label: class}", "output.path=in/x.h5"),
        *("pack.on_error=skip", "workers=1"),
    )
    assert (done.code, "labels: 0 = a, 1 = b" in done.err) == (8, True), done.err
    (listed,) = Path("in/x.h5.bad.jsonl").read_text().splitlines()
    assert words in listed
    with closing(open_store("in/x.h5")) as store:
        assert store.read(torch.arange(2))["age"].tolist() == [1, 3]


@pytest.mark.parametrize(
    "columns", [{"image": "file"}, {"image": "path", "kind": "class"}, {}, ["image"], "image"]
)
def test_columns_that_cannot_be_are_refused(columns):
    with pytest.raises(ConfigError, match=r"C162.*input\.columns"):
        _input(CSV, columns=columns)


def test_a_note_names_the_columns_that_are_left_out():
    source = _input(
        "image,mask,angle,count,text,label\n1.jpg,2.jpg,0.5,3,a b,dog\n0.jpg,1.jpg,-1,-4, 7,cat\n",
        columns=None,
    )
    assert source.notes[0].startswith("columns left out: mask, angle, count, text; take all: ")
    kinds = "image: path, mask: path, angle: float, count: int, text: text, label: class"
    assert f"'input.columns={{{kinds}}}'" in source.notes[0]
    assert list(source.manifest.fields) == ["image", "label"]


def test_tables_without_labels_or_files_are_records_too():
    source = _input("x,n,note,label,id\n0.5,3,Zürich,-1,1234567890123456789\n1e3,4,,2,7\n")
    records, keys = _all(source)
    assert (records["x"].tolist(), records["n"].tolist()) == ([0.5, 1000], [3, 4])
    assert [bytes(text).decode() for text in records["note"]] == ["Zürich", ""]
    assert (records["label"].tolist(), keys) == ([-1, 2], ["0", "1"])
    assert source.notes == (
        (
            "columns are taken to be "
            "'input.columns={x: float, n: int, note: text, label: int, id: text}'"
        ),
    )


def test_a_note_says_how_decimals_number_classes():
    _input("image,label\n1.jpg,3.0\n2.jpg,10.0\n0.jpg,2\n")
    words = ["pack", "input=list", "input.path=in/list.csv", "workers=0"]
    done = paceline(*words, "output.path=x.h5")
    note = "note: label: numbers such as '10.0' name classes, in byte order; "
    assert note in done.err
    choice = done.err.partition(note)[2].splitlines()[0].partition(", add ")[2]
    done = paceline(*words, "output.path=y.h5", *shlex.split(choice))
    assert "labels: numbers as they are, 0 to 10" in done.err, done.err
