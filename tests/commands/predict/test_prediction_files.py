"""The files that predictions become."""

import json
from pathlib import Path

import pytest

from framework.commands.predict.prediction_files import (
    check_folder,
    csv_rows,
    write_coco,
    write_csv,
    write_folder,
)
from framework.errors import ConfigError


def test_a_csv_quotes_what_needs_it_and_keeps_any_name_of_a_file():
    parts = [{"key": ['a"b,c', "\udcff.png"], "x": [0.5, 1]}, {"key": ["ü\n"], "x": [2]}]
    write_csv(Path("t.csv"), ["key", "x"], map(csv_rows, parts))
    expected = b'key,x\n"a""b,c",0.5\n' + b"\xff.png,1\n" + '"ü\n",2\n'.encode()
    assert Path("t.csv").read_bytes() == expected


def test_coco_numbers_images_and_boxes_over_all_parts():
    box = [1.0, 2.0, 3.0, 4.0, 0.5, 1]
    size = {"width": [10], "height": [20]}
    parts = [
        {"key": ["a"], **size, "boxes": [[box]]},
        {"key": ["b"], **size, "boxes": [[box, box]]},
    ]
    write_coco(Path("b.json"), lambda: iter(parts), ["cat"])
    coco = json.loads(Path("b.json").read_text())
    assert [category["name"] for category in coco["categories"]] == ["cat", "1"]
    assert [image["file_name"] for image in coco["images"]] == ["a", "b"]
    assert [(box["id"], box["image_id"]) for box in coco["annotations"]] == [(1, 1), (2, 2), (3, 2)]


def test_a_folder_replaces_only_one_of_ours():
    Path("mine").mkdir()
    check_folder(Path("mine"))  # empty
    Path("mine/x.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"C356.*holds something else"):
        check_folder(Path("mine"))
    Path("pictures").mkdir()
    write_folder(Path("out"), lambda: iter([{"key": ["a"], "file": ["a.png"]}]), Path("pictures"))
    Path("out/a.png").touch()
    check_folder(Path("out"))
    assert not Path("pictures").exists()
    Path("out/notes.txt").touch()
    with pytest.raises(ConfigError, match=r"C356.*holds something else"):
        check_folder(Path("out"))


def test_a_folder_of_pictures_named_like_formulas_is_one_of_ours():
    Path("pictures").mkdir()
    parts = [{"key": ["=a"], "file": ["=a\x1b.png"]}]
    write_folder(Path("out"), lambda: iter(parts), Path("pictures"))
    Path("out/=a\x1b.png").touch()
    assert Path("out/predictions.csv").read_text() == "key,file\n'=a,'=a\\u001b.png\n"
    check_folder(Path("out"))


@pytest.mark.parametrize("table", ["key,class\nx,cat\n", "key\n", "", "key,file\nx,run.png\n"])
def test_a_folder_with_somebody_s_table_is_not_replaced(table):
    Path("results").mkdir()
    Path("results/predictions.csv").write_text(table)
    Path("results/thesis.tex").touch()
    with pytest.raises(ConfigError, match="C356"):
        check_folder(Path("results"))
