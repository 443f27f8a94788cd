"""Predictions as columns, and the files that they become."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.commands.predict import prediction_job
from framework.contracts.prediction import ClassProbabilities, PredictedNumbers, PredictedTexts
from framework.errors import ConfigError


def test_a_csv_quotes_what_needs_it_and_keeps_any_name_of_a_file():
    parts = [{"key": ['a"b,c', "\udcff.png"], "x": [0.5, 1]}, {"key": ["ü\n"], "x": [2]}]
    prediction_job.write_csv(Path("t.csv"), ["key", "x"], map(prediction_job.csv_rows, parts))
    expected = b'key,x\n"a""b,c",0.5\n' + b"\xff.png,1\n" + '"ü\n",2\n'.encode()
    assert Path("t.csv").read_bytes() == expected


def test_coco_numbers_images_and_boxes_over_all_parts():
    box = [1.0, 2.0, 3.0, 4.0, 0.5, 1]
    size = {"width": [10], "height": [20]}
    parts = [
        {"key": ["a"], **size, "boxes": [[box]]},
        {"key": ["b"], **size, "boxes": [[box, box]]},
    ]
    prediction_job.write_coco(Path("b.json"), lambda: iter(parts), ["cat"])
    coco = json.loads(Path("b.json").read_text())
    assert [category["name"] for category in coco["categories"]] == ["cat", "1"]
    assert [image["file_name"] for image in coco["images"]] == ["a", "b"]
    assert [(box["id"], box["image_id"]) for box in coco["annotations"]] == [(1, 1), (2, 2), (3, 2)]


def test_a_folder_replaces_only_one_of_ours():
    Path("mine").mkdir()
    prediction_job.check_folder(Path("mine"))  # empty
    Path("mine/x.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"C356.*holds something else"):
        prediction_job.check_folder(Path("mine"))
    Path("pictures").mkdir()
    prediction_job.write_folder(
        Path("out"), lambda: iter([{"key": ["a"], "file": ["a.png"]}]), Path("pictures")
    )
    Path("out/a.png").touch()
    prediction_job.check_folder(Path("out"))
    assert not Path("pictures").exists()
    Path("out/notes.txt").touch()
    with pytest.raises(ConfigError, match=r"C356.*holds something else"):
        prediction_job.check_folder(Path("out"))


def test_a_folder_of_pictures_named_like_formulas_is_one_of_ours():
    Path("pictures").mkdir()
    parts = [{"key": ["=a"], "file": ["=a\x1b.png"]}]
    prediction_job.write_folder(Path("out"), lambda: iter(parts), Path("pictures"))
    Path("out/=a\x1b.png").touch()
    assert Path("out/predictions.csv").read_text() == "key,file\n'=a,'=a\\u001b.png\n"
    prediction_job.check_folder(Path("out"))


@pytest.mark.parametrize("table", ["key,class\nx,cat\n", "key\n", "", "key,file\nx,run.png\n"])
def test_a_folder_with_somebody_s_table_is_not_replaced(table):
    Path("results").mkdir()
    Path("results/predictions.csv").write_text(table)
    Path("results/thesis.tex").touch()
    with pytest.raises(ConfigError, match="C356"):
        prediction_job.check_folder(Path("results"))


PROBABILITIES = ClassProbabilities(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]))


def test_classes_come_with_the_most_probable_first():
    columns = prediction_job.table_columns(PROBABILITIES, ["a", "b"], top_k=2)
    assert columns == {
        "class": ["b", "a"],
        "probability": [0.7, 0.5],
        "class_2": ["2", "2"],  # without a name
        "probability_2": [0.2, 0.3],
    }


def test_one_number_is_one_column_and_several_are_numbered():
    single = prediction_job.table_columns(PredictedNumbers(torch.tensor([[0.1], [3.0]])), [], 1)
    assert single == {"value": [0.1, 3.0]}
    several = prediction_job.table_columns(PredictedNumbers(torch.ones(1, 2)), [], 1)
    assert list(several) == ["value_0", "value_1"]


def test_the_shortest_text_gives_a_float_back():
    numbers = np.array([0.1, 1 / 3, 1e-20], np.float32)
    assert np.array_equal(np.array(prediction_job.shortest(numbers), np.float32), numbers)
    assert prediction_job.shortest(numbers)[0] == 0.1


def test_what_an_output_cannot_hold_is_refused():
    prediction_job.check_form(PROBABILITIES, prediction_job.TABLE, "x.csv")
    with pytest.raises(ConfigError, match=r"C354.*rows of a table; give output=FILE.csv"):
        prediction_job.check_form(PROBABILITIES, prediction_job.BOXES, "x.json")
    with pytest.raises(ConfigError, match=r"C355.*has 3 classes"):
        prediction_job.check_top_k(PROBABILITIES, 4)
    with pytest.raises(ConfigError, match=r"C355.*no classes"):
        prediction_job.check_top_k(PredictedTexts([]), 2)


def test_a_name_that_is_taken_gets_a_number():
    taken: set[str] = set()
    for name in ("a.png", "a-3.png", "a-3-2.png", "a-3-3.png"):
        assert prediction_job.picture_name("a.jpg", 3, taken) == name
        taken.add(name)


def test_records_of_one_file_anywhere_have_pictures_of_their_own():
    taken: set[str] = set()
    for key in ("/data/a.tif", "/data/a.tif#1", "/data/a.tif#2"):
        taken.add(prediction_job.picture_name(key, 5, taken))
    assert taken == {"000000005.png", "000000005-5.png", "000000005-5-2.png"}


def test_a_key_does_not_lead_out_of_the_folder():
    for key in ("../a.jpg", "/etc/a.jpg", "", "x/../../a.png", "a\0.png", ".", "x" * 300):
        assert prediction_job.picture_name(key, 7, set()) == "000000007.png"
