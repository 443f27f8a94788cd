import csv
import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import framework
from framework.pack import jobs
from framework.system import durable
from tests.cli.command import is_one_error_line, paceline
from tests.faults import forked
from tests.saved_runs import EXAMPLES, digit_files, digits_run, scenes_run

WORDS = ("input.path=photos", "workers=0", "batch_size=16")
COUNT = 90


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    digits_run(folder, "max_steps=12")
    digit_files(folder, COUNT)
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def predicted(*words, run="run", code=0):
    done = paceline("predict", run, *words)
    assert done.code == code, done.err
    return done


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def small_parts():
    """Let parts have 16 records, as those of large images have."""
    jobs.MIN_JOB_BYTES = 1


def test_a_folder_of_files_becomes_a_table_in_order(folder):
    predicted(*WORDS, "output=a.csv")
    table = rows("a.csv")
    assert list(table[0]) == ["key", "class", "probability"]
    keys = [row["key"] for row in table]
    assert len(keys) == COUNT
    assert keys == sorted(keys)
    assert {"sub/000.png", "001.png"} <= set(keys)


def test_the_table_says_what_python_says(folder):
    predicted(*WORDS, "output=b.csv", "top_k=3")
    first = rows("b.csv")[0]
    names = [row["key"] for row in rows("b.csv")[:16]]
    same = framework.load("run").predict([f"photos/{name}" for name in names])[0]
    best = sorted(same["probabilities"].items(), key=lambda pair: -pair[1])[:3]
    assert [first["class"], first["class_2"], first["class_3"]] == [name for name, _ in best]
    assert float(first["probability_3"]) == pytest.approx(best[2][1], abs=1e-6)


def test_a_store_keeps_its_labels_and_accuracy_is_that_of_evaluation(folder):
    predicted("input=store", "input.path=digits/val.h5", "output=c.csv")
    table = rows("c.csv")
    right = sum(row["label"] == row["class"] for row in table)
    accuracy = json.loads(Path("run/summary.json").read_text())["best"]["accuracy"]
    assert right / len(table) == pytest.approx(accuracy)


def test_parquet_holds_the_same(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    predicted(*WORDS, "output=g.parquet")
    predicted(*WORDS, "output=g.csv")
    table = parquet.read_table("g.parquet").to_pylist()
    assert [row["class"] for row in table] == [row["class"] for row in rows("g.csv")]
    assert table[0]["probability"] == float(rows("g.csv")[0]["probability"])


def test_a_bad_image_fails_or_is_skipped_and_listed(folder, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in sorted(Path("photos").glob("*.png"))[:40]:
        (bad / path.name).write_bytes(path.read_bytes())
    (bad / "020.png").write_text("no image")
    words = (f"input.path={bad}", "batch_size=16", "workers=0")
    assert is_one_error_line(paceline("predict", "run", *words, "output=h.csv"), "D106")
    assert not Path("h.csv").exists()
    done = predicted(*words, "output=h.csv", "on_error=skip", code=8)
    assert done.err.strip().endswith("1 item skipped: h.csv.bad.jsonl lists them")
    listed = [json.loads(line) for line in Path("h.csv.bad.jsonl").read_text().splitlines()]
    assert [(item["name"], item["error"]) for item in listed] == [(f"{bad}/020.png", "D106")]
    assert "020.png" not in [row["key"] for row in rows("h.csv")]


def test_images_of_several_sizes_are_predicted_one_by_one(folder, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(folder / "photos", mixed)
    cv2.imwrite(str(mixed / "000.png"), np.zeros((12, 10), np.uint8))
    words = (f"input.path={mixed}", "workers=0")
    refused = predicted(*words, "output=sizes.csv", "batch_size=16", code=3)
    assert is_one_error_line(refused, "D107")
    assert "; add batch_size=1," in refused.err
    predicted(*words, "output=sizes.csv", "batch_size=1")
    assert len(rows("sizes.csv")) == COUNT + 1


def _killed_at(point, number):
    small_parts()
    left = [number]

    def reached(name):
        left[0] -= name == point
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    durable._reached = reached


@pytest.fixture(scope="module")
def whole(made):
    before = os.getcwd()
    os.chdir(made)
    done = forked.paceline("predict", "run", *WORDS, "output=whole.csv", before=small_parts)
    os.chdir(before)
    assert done.code == 0, done.err
    return (made / "whole.csv").read_bytes()


@pytest.mark.parametrize(
    ("point", "number"),
    [
        *(("predict.batch", 4), ("predict.part", 2), ("publish.renamed", 4)),
        ("publish.written", 8),  # of the table itself
    ],
)
def test_after_a_kill_the_same_command_gives_the_same_bytes(folder, whole, point, number):
    Path("k.csv").unlink(missing_ok=True)
    words = ("predict", "run", *WORDS, "output=k.csv")
    killed = forked.paceline(*words, before=partial(_killed_at, point, number))
    assert killed.code == -signal.SIGKILL
    done = forked.paceline(*words, before=small_parts)
    assert done.code == 0, done.err
    assert Path("k.csv").read_bytes() == whole
    if point != "predict.batch" or number > 1:
        assert "records had been predicted before" in done.out
    assert sorted(path.name for path in Path().glob("k.csv*")) == ["k.csv"]


def test_a_changed_file_is_predicted_again(folder, whole, tmp_path):
    changed = tmp_path / "photos"
    for path in sorted(Path("photos").glob("*.png")):
        (changed / path.name).parent.mkdir(exist_ok=True)
        (changed / path.name).write_bytes(path.read_bytes())
    words = (f"input.path={changed}", "workers=0", "batch_size=16")
    forked.paceline(
        "predict", "run", *words, "output=m.csv", before=partial(_killed_at, "predict.noted", 2)
    )
    first = min(path.name for path in changed.iterdir())
    (changed / first).write_bytes(cv2.imencode(".png", np.full((8, 8), 255, np.uint8))[1].tobytes())
    done = forked.paceline("predict", "run", *words, "output=m.csv", before=small_parts)
    assert done.code == 0, done.err
    predicted(*words, "output=n.csv")
    assert Path("m.csv").read_bytes() == Path("n.csv").read_bytes()


@pytest.mark.parametrize(("name", "code"), [(signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_in_one_line(folder, whole, name, code):
    def interrupt():
        small_parts()
        durable._reached = lambda point: (
            os.kill(os.getpid(), name) if point == "predict.noted" else None
        )

    words = ("predict", "run", *WORDS, "output=s.csv")
    done = forked.paceline(*words, before=interrupt)
    assert done.code == code
    assert done.err.strip().endswith("finished parts are kept; the same command continues")
    assert len(done.err.strip().splitlines()) == 1
    assert forked.paceline(*words, before=small_parts).code == 0
    assert Path("s.csv").read_bytes() == whole


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    scenes_run(folder, "segment")
    scenes_run(folder, "detect")
    return folder


MASKS = ("input=store", "input.path=segment/val.h5", "as=mask", EXAMPLES)


def test_masks_have_the_size_of_their_images_and_a_table_of_keys(scenes, monkeypatch):
    monkeypatch.chdir(scenes)
    predicted(*MASKS, "output=masks", run="segment_run")
    table = rows("masks/predictions.csv")
    assert len(table) == 10
    mask = cv2.imread(f"masks/{table[3]['file']}", cv2.IMREAD_UNCHANGED)
    assert mask.shape == (80, 80)
    image = framework.open_store("segment/val.h5").read(torch.arange(10))["image"]
    run = framework.load("segment_run", allow_targets=["paceline_examples"])
    same = run.predict(image)[3]["map"]
    assert (mask == same).mean() > 0.99


def test_boxes_become_coco_and_can_be_packed_again(scenes, monkeypatch):
    monkeypatch.chdir(scenes)
    words = ("input=store", "input.path=detect/val.h5", "output=b.json", EXAMPLES)
    predicted(*words, run="detect_run")
    coco = json.loads(Path("b.json").read_text())
    assert [image["id"] for image in coco["images"]] == list(range(1, 11))
    assert {(image["width"], image["height"]) for image in coco["images"]} == {(80, 80)}
    box = coco["annotations"][0]
    left, _, width, _ = box["bbox"]
    assert left >= 0
    assert left + width <= 80.01
    assert 0 < box["score"] < 1
    assert box["category_id"] in {category["id"] for category in coco["categories"]}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("segment_run", ["input.path=segment/val.h5", "output=x.csv"]),
        ("segment_run", ["input.path=segment/val.h5", "output=x", "as=image"]),
        ("detect_run", ["input.path=detect/val.h5", "output=x.parquet"]),
    ],
)
def test_an_output_of_another_kind_is_refused(scenes, monkeypatch, run, words):
    monkeypatch.chdir(scenes)
    done = paceline("predict", run, "input=store", EXAMPLES, *words)
    assert is_one_error_line(done, "C354")
    assert not list(Path().glob("x*"))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["run", "input.path=photos"], "C103"),
        (["run", "input.path=photos", "output=x.txt"], "C354"),
        (["run", "input.path=photos", "output=x.csv", "as=mask"], "C354"),
        (["run", "input.path=photos", "output=x.csv", "topk=2"], "C102"),
        (["run", "input.path=photos", "output=x.csv", "top_k=11"], "C355"),
        (["run", "input.path=photos", "output=photos/x.csv"], "C356"),
        (["run", "input.path=photos", "output=x.csv", "on_error=stop"], "C101"),
        (["none", "input.path=photos", "output=x.csv"], "K120"),
        (["run", "input=list", "input.path=y.csv", "output=x.csv"], "C352"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_one_line(folder, words, number):
    Path("y.csv").write_text("size,x\n1,2\n")
    shutil.rmtree("outputs/predict", ignore_errors=True)  # of those that were killed
    assert is_one_error_line(paceline("predict", *words), number)
    assert not list(Path().glob("x.csv*"))
    assert not Path("outputs/predict").exists()
