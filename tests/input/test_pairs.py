from pathlib import Path

import pytest

from framework.errors import ConfigError, DataError
from framework.input.pairs import PairsInput
from tests.contract.cases import jpeg

FOLDERS = {"blurry": "in/blurry", "sharp": "in/sharp"}


def _write(*names):
    for number, name in enumerate(names):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(jpeg(number))


def _names(fields, unmatched="fail"):
    source = PairsInput(fields, unmatched)
    return source.read(0, source.manifest.num_records).keys


def test_files_of_one_relative_path_are_a_record_whatever_their_suffix():
    _write("in/blurry/a/1.png", "in/blurry/b/1.jpg", "in/sharp/a/1.png", "in/sharp/b/1.png")
    records, keys = PairsInput(FOLDERS, "fail").read(0, 2)
    assert keys == ["a/1", "b/1"]
    assert records == {"blurry": [jpeg(0), jpeg(1)], "sharp": [jpeg(2), jpeg(3)]}


@pytest.mark.parametrize(
    ("blurry", "sharp", "keys"),
    [
        ("in/blurry/*/x.png", "in/sharp/*/x.png", ["a", "b"]),
        ("in/*/a/x.png", "in/*/b/x.png", ["blurry", "sharp"]),
        ("in/blurry/**/x.png", "in/sharp/**/x.png", ["a", "b"]),
        ("in/blur*y/?/x.png", "in/sharp/r/?/x.png", None),
        ("in/blurry/**", "in/sharp/**", ["a/x.png", "b/x.png"]),
    ],
)
def test_files_are_matched_by_what_the_wildcards_stand_for(blurry, sharp, keys):
    _write(
        *("in/blurry/a/x.png", "in/blurry/b/x.png", "in/sharp/a/x.png", "in/sharp/b/x.png"),
        "in/blurry/c.jpg.txt",
    )
    if keys is None:
        with pytest.raises(DataError, match=r"D1[016]"):
            _names({"blurry": blurry, "sharp": sharp})
    else:
        assert _names({"blurry": blurry, "sharp": sharp}) == keys


def test_unmatched_names_are_listed():
    _write(*(f"in/blurry/{number:02d}.png" for number in range(14)))
    _write("in/sharp/13.png", "in/sharp/z.png")
    with pytest.raises(
        DataError,
        match=r"D160.*14 unmatched names: "
        r"00 \(not in sharp\); 01 .*09 \(not in sharp\); \.\.\.; .*skip",
    ):
        _names(FOLDERS)


def test_unmatched_names_can_be_left_out_and_are_counted():
    _write("in/blurry/1.png", "in/blurry/2.png", "in/sharp/2.png", "in/sharp/3.png")
    assert _names(FOLDERS, "skip") == ["2"]
    assert PairsInput(FOLDERS, "skip").manifest.source.endswith("(2 unmatched left out)")


def test_two_files_of_one_name_are_refused():
    _write("in/blurry/1.png", "in/blurry/1.jpg", "in/sharp/1.png")
    with pytest.raises(DataError, match=r"D163.*in/blurry: '1\.jpg' and '1\.png' are one record"):
        _names(FOLDERS)


@pytest.mark.parametrize("fields", [{}, "in/blurry", None, ["in"]])
def test_fields_must_name_trees(fields):
    with pytest.raises(ConfigError, match=r"C162.*input\.fields"):
        PairsInput(fields, "fail")
