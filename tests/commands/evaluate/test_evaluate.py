import json
import shutil
from pathlib import Path

import pytest

from framework.commands.evaluate.evaluate import print_evaluation
from tests.cli.command import is_one_error_line, paceline
from tests.contract.cases import jpeg, write_folder
from tests.saved_runs import digits_run, summary_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    digits_run(folder)
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    yield made
    for path in ("out", "outputs/evaluate"):
        shutil.rmtree(path, ignore_errors=True)


def result(path="out"):
    return json.loads((Path(path) / "evaluation.json").read_text())


def evaluated(*words):
    done = paceline("evaluate", "run", *words, "output=out")
    assert done.code == 0, done.err
    return done


def test_its_means_are_those_of_training_to_the_bit(folder):
    done = evaluated("weights=last")
    assert result()["sets"]["val"]["means"] == summary_of(folder / "run")["val"]
    assert "where the step time went" in done.out
    assert "val loss" in done.out


@pytest.mark.slow
def test_two_ranks_give_the_same_to_rounding(folder):
    evaluated("parallel=ddp", "parallel.num_processes=2", "workers=0")
    evaluation = result()
    assert evaluation["ranks"] == 2
    best = summary_of(folder / "run")["best"]
    means = evaluation["sets"]["val"]["means"]
    assert means == pytest.approx({name: best[name] for name in means}, rel=1e-5)
    assert sum(row["count"] for row in evaluation["sets"]["val"]["classes"]) == 360
    assert len(evaluation["sets"]["val"]["worst"]) == 24


def test_another_store_is_evaluated_whole_and_the_run_stays_as_it_was(folder):
    before = sorted(path.name for path in Path("run").rglob("*"))
    evaluated("data.val=digits/train.h5", "worst=0")
    assert result()["sets"]["val"]["records"] == 1437
    assert sorted(path.name for path in Path("run").rglob("*")) == before


def test_metrics_and_several_sets_are_those_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = "data.val={clean: digits/val.h5, seen: digits/train.h5}"
    digits_run(tmp_path)  # packs
    digits_run(tmp_path, sets, "metrics=[macro_f1,top5]", "limit=200", name="several")
    done = paceline("evaluate", "several", "weights=last", "worst=0", "output=out")
    assert done.code == 0, done.err
    trained = summary_of(Path("several"))["val"]
    means = {
        f"{split.removeprefix('val.')}.{name}": mean
        for split, part in result()["sets"].items()
        for name, mean in part["means"].items()
    }
    assert means == trained
    assert "clean.macro_f1" in means


def test_images_of_several_sizes_are_validated_and_evaluated_one_by_one(tmp_path, monkeypatch):
    """Without batches of one, the run ends before its first step, and not after an epoch."""
    monkeypatch.chdir(tmp_path)
    images = [jpeg(number, 20 + 2 * (number // 3), 24) for number in range(12)]
    write_folder("in", images)
    words = [
        *("train", "data=folder", "data.train=in", "data.val=in", "data.val_transform=none"),
        *("transform=random_crop", "transform.size=[16,16]", "batch_size=4", "epochs=1"),
        *("model=digits", "model.width=4", "hydra.run.dir=run"),
    ]
    done = paceline(*words)
    assert is_one_error_line(done, "D107")
    assert "val_batch_size=1" in done.err
    assert not list(Path("run").rglob("metrics.jsonl"))
    done = paceline(*words, "val_batch_size=1")
    assert done.code == 0, done.err
    evaluated("weights=last")
    assert result()["sets"]["val"]["means"] == summary_of(Path("run"))["val"]
    assert len(result()["sets"]["val"]["worst"]) == 12


def test_pictures_and_the_page_are_beside_the_figures(folder):
    done = evaluated("worst=3")
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == ["confusion.png", "evaluation.json", "worst.html"]
    assert "results: out (evaluation.json, confusion.png, worst.html)" in done.out


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *(([], "C103"), (["nowhere"], "K120"), (["run", "wrost=3"], "C102")),
        *((["run", "weights=average"], "K124"), (["run", "limit=3"], "C353")),
        *((["run", "data.val=3"], "C101"), (["run", "worst=-1"], "C101")),
        *((["run", "device=moon"], "C119"), (["run", "output=run/run.json"], "R101")),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(folder, words, number):
    done = paceline("evaluate", *words)
    assert is_one_error_line(done, number)
    assert not Path("outputs/evaluate").exists()


def test_of_many_classes_those_with_the_lowest_f1_are_shown(capsys):
    rows = [
        {"name": f"c{n}", "count": 1, "precision": 1.0, "recall": None, "f1": n / 50, "iou": 0.5}
        for n in range(50)
    ]
    figures = {"data": "v.h5", "records": 50, "wall_s": 1.0, "records_per_s": 50.0, "spans": {}}
    figures |= {"means": {"loss": 1.5}, "classes": rows}
    summary = {"sets": {"val": figures}, "files": [], "weights_file": "w.pt"}
    print_evaluation(Path("out"), summary)
    text = capsys.readouterr().out
    assert "the 20 of 50 classes with the lowest f1" in text
    assert "c0 " in text
    assert "c20 " not in text
    assert "val loss 1.5000" in text
