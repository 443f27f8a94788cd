"""What a run takes from its data: channels and classes, and which records it uses."""

import json
from pathlib import Path

import numpy as np
import pytest

from framework.config.assemble import Assembly
from framework.contracts.records import Field, Manifest
from framework.errors import ConfigError
from framework.store.hdf5_store import HDF5Writer
from tests.cli.command import config_of, is_one_error_line, paceline, refusal_of
from tests.conftest import make_records, write_store

SHORT = ("epochs=1", "batch_size=14", "report_every=1", "sink=[jsonl]", "hydra.run.dir=run")


def train(*words):
    return paceline("train", *SHORT, *words)


def facts():
    return json.loads(Path("run/run.json").read_text())["auto"]


def colors(path="a.h5", classes="0123456", writer=HDF5Writer):
    """Write a store of random colors."""
    labels = np.arange(42, dtype=np.int64) % len(classes)
    images = np.random.default_rng(0).integers(0, 200, (42, 3, 8, 8), np.uint8)
    fields = {"image": Field("uint8", (3, 8, 8)), "label": Field("int64", ())}
    store = writer(path, fields=fields, num_records=42)
    store.write({"image": images, "label": labels}, [f"{number:02}" for number in range(42)])
    store.close(Manifest(42, fields, [*classes], source="a test"))


def test_a_model_learns_colors_and_classes_though_neither_is_typed():
    colors()
    done = train("data.train=a.h5", "model=digits", "model.width=4")
    assert done.code == 0, done.err
    assert facts()["model.in_channels"] == 3
    assert facts()["model.num_classes"] == 7
    note = "note: from the data: model.in_channels=3, model.num_classes=7, augment.mean=[0.3"
    assert note in done.err
    resolved = json.loads(Path("run/resolved.json").read_text())
    assert (resolved["model"]["in_channels"], resolved["model"]["num_classes"]) == (3, 7)
    assert resolved["augment"]["mean"] == facts()["augment.mean"]
    assert "in_channels: auto" in Path("run/config.yaml").read_text()


def test_a_resumed_run_has_the_same_facts_and_refuses_others():
    colors()
    assert train("data.train=a.h5").code == 0
    before = facts()
    assert paceline("train", "resume=run", "epochs=2").code == 0
    assert facts() == before
    colors(classes="012345")
    done = paceline("train", "resume=run", "epochs=3")
    assert is_one_error_line(done, "K105")
    assert "model.num_classes (7, now 6)" in done.err
    assert "data.digest" in done.err


@pytest.fixture
def store():
    write_store("all.h5", make_records(30))
    return ("data.train=all.h5", "batch_size=4")


def test_a_fold_of_the_training_data_validates(store):
    done = train(*store, "fold=0", "folds=5", "fold_by=label")
    assert done.code == 0, done.err
    note = "fold 0 of 5 of data.train validates, with equal label in one fold"
    assert note in done.err
    assert "no validation" not in done.err
    assert json.loads(Path("run/summary.json").read_text())["val"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("fold=0",), "need each other"),
        (("folds=5",), "need each other"),
        (("fold=5", "folds=5"), "numbered from 0 to 4"),
        (("fold_by=label",), "there are no folds"),
        (("fold=0", "folds=5", "data.val=x.h5"), "a fold of data.train validates"),
    ],
)
def test_folds_that_do_not_fit_are_refused(words, text):
    line = refusal_of("data.train=all.h5", *words)
    assert line.startswith("error[C205]: ")
    assert text in line


def test_labels_that_validation_numbers_otherwise_are_not_selected_by_number():
    colors("train.h5", classes="abcd")
    colors("val.h5", classes="bd")
    config = config_of("data.train=train.h5", "data.val=val.h5", "select=label < 2")
    with pytest.raises(ConfigError, match=r"C204.*number otherwise"):
        Assembly(config, ())
