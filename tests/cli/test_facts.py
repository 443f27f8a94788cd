"""The real command takes channels, classes, mean and deviation from its data."""

import json
from pathlib import Path

import numpy as np
import pytest

from framework.input.arrays import ArraysInput
from framework.input.store import StoreInput
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packing
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Writer
from tests.cli.command import losses, paceline
from tests.faults.forked import is_one_line
from tests.input.inputs import FORMATS

SHORT = [
    "data.val=null",
    "model.width=4",
    "epochs=1",
    "batch_size=14",
    "report_every=1",
    "clock=false",
    "sink=[jsonl]",
]
FACTS = {"model.in_channels": 3, "model.num_classes": 7}


def make_store(path, num_classes=7, num_records=42):
    """Write a store of random colors to ``path``, and return ``path``."""
    labels = np.arange(num_records, dtype=np.int64) % num_classes
    images = np.random.default_rng(0).integers(0, 200, (num_records, 3, 8, 8), np.uint8)
    np.savez(f"{path}.npz", image=images, label=labels)
    writer = FORMATS[Path(path).suffix]
    pack(Packing(ArraysInput(f"{path}.npz", None), writer, path, suffix=Path(path).suffix))
    return path


def make_folder(store, path):
    """Write the records of a store as PNG files below ``path``, and return ``path``."""
    pack(Packing(StoreInput(store), FolderWriter, path, make_part=HDF5Writer))
    return path


def facts_of(run_dir="run"):
    return json.loads(Path(run_dir, "run.json").read_text())["auto"]


def trained(*words):
    done = paceline("train", *SHORT, *words)
    assert done.code == 0, done.err
    return done


def test_a_model_learns_seven_classes_of_colors_though_neither_is_typed():
    done = trained(f"data.train={make_store('a.h5')}", "model=digits", "hydra.run.dir=run")
    facts = facts_of()
    assert {key: facts[key] for key in FACTS} == FACTS
    assert (
        "note: from the data: model.in_channels=3, model.num_classes=7, augment.mean=[0.3"
        in done.err
    )
    resolved = json.loads(Path("run/resolved.json").read_text())
    assert (resolved["model"]["in_channels"], resolved["model"]["num_classes"]) == (3, 7)
    assert resolved["augment"]["mean"] == facts["augment.mean"]
    assert len(facts["augment.std"]) == 3
    assert "in_channels: auto" in Path("run/config.yaml").read_text()


def test_every_data_choice_tells_the_same_facts():
    make_store("a.h5")
    make_store("a.lmdb")
    make_folder("a.h5", "a.folder")
    given = {"hdf5": "a.h5", "lmdb": "a.lmdb", "dali": "a.lmdb", "folder": "a.folder"}
    for name, path in given.items():
        trained(f"data={name}", f"data.train={path}", f"hydra.run.dir={name}")
    assert all(facts_of(name) == facts_of("hdf5") for name in given)
    assert losses(Path("lmdb")) == losses(Path("hdf5"))


def test_a_model_of_the_user_s_own_takes_what_it_names_auto():
    own = ["model._target_=tests.faults.net.Net", "allow_targets=[tests]"]
    trained(f"data.train={make_store('a.h5')}", *own, "model.num_classes=auto", "hydra.run.dir=run")
    assert {key: facts_of()[key] for key in FACTS} == FACTS


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("model.num_classes=6", "C154"),
        ("model.in_channels=1", "C155"),
        ("augment.mean=[0.5]", "C156"),
    ],
)
def test_a_typed_value_that_contradicts_the_data_ends_the_command_before_the_first_step(
    word, number
):
    done = paceline("train", *SHORT, f"data.train={make_store('a.h5')}", word, "hydra.run.dir=run")
    assert is_one_line(done, number, 2, word.partition("=")[0])
    assert not Path("run/metrics.jsonl").exists()


def test_what_the_data_does_not_tell_is_to_be_typed():
    np.savez("a.npz", image=np.zeros((20, 3, 8, 8), np.uint8), count=np.zeros((20, 2), np.int16))
    pack(Packing(ArraysInput("a.npz", None), HDF5Writer, "a.h5"))
    words = ("data.train=a.h5", "objective=regress", "objective.target=count")
    done = paceline("train", *SHORT, *words)
    assert is_one_line(done, "C157", 2, "model.num_classes = auto", "type it: model.num_classes=")
    trained(*words, "model.num_classes=2")


@pytest.mark.parametrize("shape", [(20,), (20, 2)])
@pytest.mark.parametrize("loss", ["regress", "loss"])
def test_a_target_of_floats_tells_how_many_numbers_a_model_gives(shape, loss):
    target = np.zeros(shape, np.float32)
    np.savez("a.npz", image=np.zeros((20, 3, 8, 8), np.uint8), target=target)
    pack(Packing(ArraysInput("a.npz", None), HDF5Writer, "a.h5"))
    words = ["data.train=a.h5", f"objective={loss}", "objective.target=target"]
    if loss == "loss":
        words.append("objective.losses={huber: {_target_: torch.nn.HuberLoss}}")
    trained(*words, "hydra.run.dir=run")
    assert facts_of()["model.num_classes"] == (1 if len(shape) == 1 else 2)


def test_a_resumed_run_has_the_same_facts_and_refuses_others():
    make_store("a.h5")
    trained("data.train=a.h5", "hydra.run.dir=run")
    before = facts_of()
    trained("resume=run", "epochs=2")
    assert facts_of() == before
    make_store("a.h5", num_classes=6)
    done = paceline("train", "resume=run", "epochs=3")
    assert is_one_line(done, "K105", 4, "model.num_classes (7, now 6)", "data.digest")


def test_the_composed_job_shows_auto_and_that_is_what_runs():
    done = paceline("train", "--cfg", "job")
    assert "  in_channels: auto" in done.out
    assert "  mean: auto" in done.out
