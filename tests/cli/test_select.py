"""``select``, ``folds``, ``data.val_transform`` and ``val_batch_size`` on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from framework.image.decode import encode_png
from tests.cli.command import paceline
from tests.faults.forked import is_one_line

STORE = ("input=digits", "output.path=all.h5")
TRAIN = (
    "train",
    "recipes=null",
    "data.train=all.h5",
    "data.val=null",
    "max_steps=2",
    "sink=[jsonl]",
)


@pytest.fixture(autouse=True)
def store():
    assert paceline("pack", *STORE).code == 0


def summary(folder="run"):
    return json.loads(Path(folder, "summary.json").read_text())


def train(*words):
    return paceline(*TRAIN, "hydra.run.dir=run", *words)


def test_a_run_uses_the_selected_records_only():
    done = train("select=label in [3, 5] and width >= 8", "limit=null", "epochs=1")
    assert done.code == 0, done.err
    done = train("hydra.run.dir=other", "select=width > 8")
    assert is_one_line(done, "C205", 2, "select = width > 8")


def test_folds_validate_on_the_training_data():
    words = [word for word in TRAIN if word != "data.val=null"]
    done = paceline(*words, "hydra.run.dir=run", "fold=0", "folds=5", "max_steps=null", "epochs=1")
    assert done.code == 0, done.err
    assert "note: fold 0 of 5 of data.train validates" in done.err + done.out
    assert "no validation" not in done.err
    assert summary()["val"]


def test_validation_data_beside_folds_is_refused():
    done = train("fold=0", "folds=5", "data.val=all.h5")
    assert is_one_line(done, "C205", 2, "data.val = all.h5", "a fold of data.train validates")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("fold=0",), "need each other"),
        (("folds=5",), "need each other"),
        (("fold=5", "folds=5"), "numbered from 0 to 4"),
        (("fold_by=label",), "there are no folds"),
        (("fold=0", "folds=2", "fold_by=patient"), "fold_by = patient: is not known"),
    ],
)
def test_folds_that_do_not_fit_are_refused(words, text):
    assert is_one_line(train(*words), "C205", 2, text)


def test_validation_has_a_transform_and_a_batch_size_of_its_own():
    done = train(
        *("data.val=all.h5", "transform=random_crop", "transform.size=[8, 8]", "val_batch_size=7"),
        *("data.val_transform=center_crop", "data.val_transform.size=[8, 8]"),
    )
    assert done.code == 0, done.err


def test_a_resumed_run_must_select_the_same():
    assert train("select=label < 5", "max_steps=1").code == 0
    done = train("resume=run", "select=label < 4", "max_steps=2")
    assert is_one_line(done, "K105", 4, "select")


def test_the_transform_of_validation_may_be_taken_back():
    done = train("data.val=all.h5", "data.val_transform=null")
    assert done.code == 0, done.err


def test_folds_that_are_null_name_no_validation_data():
    words = [word for word in TRAIN if word != "data.val=null"]
    done = paceline(*words, "hydra.run.dir=run", "folds=null")
    assert done.code == 0, done.err
    assert "no validation" in done.err


def test_labels_that_validation_numbers_otherwise_cannot_be_selected_by_number():
    for split, names in (("train", "abcd"), ("val", "bd")):
        for name in names:
            Path(split, name).mkdir(parents=True)
            Path(split, name, "1.png").write_bytes(encode_png(np.zeros((1, 8, 8), np.uint8)))
        words = ("input=folder", f"input.path={split}", f"output.path={split}.h5")
        assert paceline("pack", *words, "pack.encode=raw").code == 0
    words = ("data.train=train.h5", "data.val=val.h5", "select=label < 2")
    assert is_one_line(train(*words), "C204", 2, "number otherwise")
