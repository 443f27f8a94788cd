"""A run directory opened for use: its own configuration, weights, classes and batches."""

import shutil
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import framework
from framework.cli.hydra_session import as_written
from framework.config import resume, saved_run
from framework.errors import CheckpointError, ConfigError
from framework.measure.clock import NoClock
from framework.system.rng import choose_algorithms, is_deterministic
from framework.system.run_dir import read_json, write_object
from framework.train.checkpoint import newest_state, save_state
from framework.train.parts import evaluate
from tests.cli.command import config_of, paceline
from tests.saved_runs import change, digits_run, summary_of, write_signed

# -------------------------------------------------------------------------------- its configuration

FIELD = {"dtype": "uint8", "shape": [1, 8, 8], "encoding": "raw", "kind": "image"}
TRAIN = {"num_records": 3, "fields": {"image": FIELD}, "classes": ["a", "b"], "first_key": None}


@cache
def synthetic():
    return config_of("data=synthetic", "prepare=null")


def write(facts=None, **changes):
    """Write the files of a run with other values in some blocks of its configuration."""
    config = dict(synthetic())
    for key, value in changes.items():
        is_block = isinstance(value, dict) and value
        config[key] = {**config[key], **value} if is_block else value
    write_object(Path("resolved.json"), config)
    write_object(Path("run.json"), facts or {"data": {"train": TRAIN}})


def test_values_that_the_data_gave_replace_auto():
    auto = {"augment.mean": [0.5], "model.no_such.key": 3}
    write({"data": {"train": TRAIN}, "auto": auto}, augment={"mean": "auto"})
    config, train, *_ = resume.read_config(Path())
    assert config["augment"]["mean"] == [0.5]
    assert train.fields["image"].shape == (1, 8, 8)
    assert train.classes == ["a", "b"]


def test_paths_of_data_are_those_of_the_folder_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/t.h5").touch()
    facts = {"data": {"train": TRAIN}, "folder": str(tmp_path / "x")}
    write(facts, data={"train": "t.h5", "val": {"a": "t.h5", "b": "gone.h5"}})
    here = resume.read_config(tmp_path)
    assert here.config["data"]["train"] == str(tmp_path / "x/t.h5")
    assert here.config["data"]["val"] == {"a": str(tmp_path / "x/t.h5"), "b": "gone.h5"}
    assert here.folder == str(tmp_path / "x")
    block = {"_target_": "mine.Set", "path": "t.h5", "names": ["gone.h5"]}
    write(facts, data={"train": "*.h5", "val": block})
    data = resume.read_config(tmp_path).config["data"]
    assert data["train"] == str(tmp_path / "x/*.h5")
    assert data["val"] == {**block, "path": str(tmp_path / "x/t.h5")}
    write(facts, data={"train": "t.h5"})
    monkeypatch.chdir("x")
    there = resume.read_config(tmp_path)
    assert (there.config["data"]["train"], there.folder) == ("t.h5", "")


def test_paths_before_a_resume_are_those_of_its_folder(tmp_path):
    for name in "xy":
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.h5").touch()
    starts = [
        {"config": "resolved.json", "folder": str(tmp_path / "x")},
        {"config": "resolved.2.json", "folder": str(tmp_path / "y")},
    ]
    write({"data": {"train": TRAIN}, "folder": str(tmp_path / "y"), "starts": starts})
    for name in ("resolved.json", "resolved.2.json"):
        config = synthetic()
        write_object(Path(name), {**config, "data": {**config["data"], "train": "t.h5"}})
    read = [resume.read_config(tmp_path, part["config"]) for part in starts]
    assert [saved.folder for saved in read] == [part["folder"] for part in starts]
    assert [Path(saved.config["data"]["train"]).parent.name for saved in read] == ["x", "y"]


def test_the_environment_is_read_where_the_run_named_it(monkeypatch):
    write(data={"val": "${oc.env:PLACE}/val.h5"})
    with pytest.raises(CheckpointError, match=r"K120.*variable PLACE is not set"):
        resume.read_config(Path())
    monkeypatch.setenv("PLACE", "/data")
    assert resume.read_config(Path())[0]["data"]["val"] == "/data/val.h5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("32", 32), ("1e-3", 1e-3), ("null", None), ("[1, {a: [b]}]", [1, {"a": ["b"]}])),
        *(("'32'", "32"), ("words as they are", "words as they are")),
    ],
)
def test_a_decoded_value_of_the_environment_is_decoded_again(text, value, monkeypatch):
    monkeypatch.setenv("BS", text)
    resolved = as_written(OmegaConf.create({"x": "${oc.decode:${oc.env:BS}}"}))
    write(data=resolved)
    read = resume.read_config(Path())[0]["data"]["x"]
    assert (read, type(read)) == (value, type(value))
    assert read == OmegaConf.create({"x": "${oc.decode:${oc.env:BS}}"}).x


def test_decoded_values_may_be_parts_of_texts_and_lists(monkeypatch):
    monkeypatch.setenv("BS", "32")
    words = ["a-${oc.decode:${oc.env:BS}}-${oc.env:BS}", "${oc.decode:[${oc.env:BS}]}"]
    write(data={"x": words})
    assert resume.read_config(Path())[0]["data"]["x"] == ["a-32-32", [32]]


@pytest.mark.parametrize("text", ["${oc.decode:${oc.env:BS}}", "${oc.decode:${oc.env:BS}"])
def test_what_cannot_be_decoded_is_refused_without_its_value(text, monkeypatch):
    monkeypatch.setenv("BS", "[secret")
    write(data={"x": text})
    with pytest.raises(CheckpointError, match=r"K120.*oc\.decode") as caught:
        resume.read_config(Path())
    assert "secret" not in str(caught.value)


def test_the_newest_configuration_of_a_resumed_run_counts():
    write()
    for number, batch_size in ((10, 7), (2, 5)):
        write_object(Path(f"resolved.{number}.json"), {**synthetic(), "batch_size": batch_size})
    assert resume.read_config(Path())[0]["batch_size"] == 7


@pytest.mark.parametrize("change", [{"batch_size": 0}, {"model": 3}, {"workers": {}}, {"order": 1}])
def test_values_that_cannot_be_are_refused(change):
    write(**change)
    with pytest.raises(CheckpointError, match="K120"):
        resume.read_config(Path())


def test_a_run_that_never_began_is_refused():
    write()
    write_object(Path("run.json"), {})
    with pytest.raises(CheckpointError, match=r"K120.*never began"):
        resume.read_config(Path())


# -------------------------------------------------------------------------------------- its weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    digits_run(folder, "ema_decay=0.9", "epochs=1")
    return folder


@pytest.fixture
def run_dir(folder, monkeypatch):
    monkeypatch.chdir(folder)  # the paths of the data are relative
    return folder / "run"


@pytest.fixture
def copy(run_dir, tmp_path):
    """Return a copy of the run, which a test may change."""
    shutil.copytree(run_dir, tmp_path / "copy")
    return tmp_path / "copy"


def means(run, path=None):
    """Return the means and the number of records of a validation."""
    with closing(run.loader(run.source(path))) as loader:
        parts = (run.model, loader.epoch(0), run.objective, run.precision, NoClock(), run.parallel)
        return evaluate(*parts)[:2]


def test_its_validation_is_that_of_training_to_the_bit(run_dir):
    run = framework.load(run_dir, weights="last")
    assert means(run) == (summary_of(run_dir)["val"], 360.0)
    best = dict(summary_of(run_dir)["best"])
    best.pop("step")
    assert means(framework.load(run_dir))[0] == best
    assert list(run.classes) == [str(digit) for digit in range(10)]


def test_validation_data_that_has_changed_must_be_named(copy):
    facts = read_json(copy / "run.json")
    facts["data"]["val"]["digest"] = "0" * 64
    write_object(copy / "run.json", facts)
    run = framework.load(copy)
    with pytest.raises(CheckpointError, match=r"K125.*data.val = digits/val.h5: is other data"):
        run.source()
    run.source("digits/val.h5").close()


def test_weights_may_be_a_file_or_a_state(run_dir):
    for path in (run_dir / "checkpoints").iterdir():
        assert framework.load(run_dir, weights=path).model.head.out_features == 10


def test_batches_of_a_store_hold_every_record_once_as_the_model_gets_it(run_dir):
    batches = list(framework.load(run_dir).batches("digits/train.h5"))
    indices = torch.cat([batch["index"] for batch in batches])
    assert torch.equal(indices, torch.arange(1437))
    assert batches[0]["image"].dtype == torch.float32


def test_the_training_data_need_not_exist(copy, run_dir, tmp_path):
    shutil.copy("digits/val.h5", tmp_path / "val.h5")
    expected = means(framework.load(run_dir))
    assert means(framework.load(copy), str(tmp_path / "val.h5")) == expected


def test_a_loaded_run_leaves_the_determinism_of_this_process_on(run_dir):
    choose_algorithms(torch.device("cpu"), deterministic=True)
    assert framework.load(run_dir).parallel.rank == 0
    assert is_deterministic()
    choose_algorithms(torch.device("cpu"), deterministic=False)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"data": 3}', '{"model": "${oc.env:NO_SUCH}"}'])
def test_a_damaged_configuration_is_refused(copy, text):
    write_signed(copy / "resolved.json", text)
    with pytest.raises(CheckpointError, match="K120"):
        framework.load(copy)


def test_a_class_that_nobody_allowed_is_not_called(copy):
    # A file must not allow itself anything.
    values = {"model": {"_target_": "mypkg.Net"}, "allow_targets": ["mypkg"]}
    change(copy / "resolved.json", **values)
    with pytest.raises(ConfigError, match=r"C105.*model._target_ = mypkg.Net"):
        framework.load(copy)


@pytest.mark.parametrize(
    ("weights", "line"),
    [("nowhere.pt", r"K121.*nowhere\.pt"), ("text.pt", "K111"), ("other.pt", "K122")],
    ids=["missing", "no weights", "another model"],
)
def test_weights_that_cannot_be_loaded_are_refused(run_dir, tmp_path, weights, line):
    (tmp_path / "text.pt").write_text("hello")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=line):
        _ = framework.load(run_dir, weights=tmp_path / weights).model


def test_a_run_without_an_average_is_refused(copy):
    state = {**newest_state(copy).state, "average": None}
    save_state(copy / "checkpoints" / "step-00000099.pt", state, 99, 99)
    with pytest.raises(CheckpointError, match=r"K124.*keeps no average"):
        _ = framework.load(copy, weights="average").model


def test_a_run_without_validation_data_needs_a_path(run_dir):
    changes = {"data": {**framework.load(run_dir).config["data"], "val": None}}
    with pytest.raises(ConfigError, match="C350"):
        saved_run.open_run(run_dir, (), changes=changes).source()


# --------------------------------------------------------------------------- datasets of the user's

OWN = """
import torch
from framework.store.open_store import open_store

class Digits(torch.utils.data.Dataset):
    classes = [str(digit) for digit in range(10)]
    def __init__(self, floats=False):
        self.records = open_store("digits/val.h5").read(torch.arange(32))
        self.floats = floats
    def __len__(self):
        return 32
    def __getitem__(self, index):
        image, label = self.records["image"][index], int(self.records["label"][index])
        return {"image": image / 255 if self.floats else image, "label": label}
"""
VAL = "digits/val.h5"
BYTES = {"_target_": "own_digits.Digits"}
FLOATS = {**BYTES, "floats": True}


@pytest.fixture(scope="module")
def own_runs(folder):
    """Train on a Dataset of bytes, which are normalized, and on one of floats, which are not."""
    (folder / "own_digits.py").write_text(OWN)
    words = ("recipes=digits", "dataset=null", "data=dataset", "max_steps=1", "workers.num=0")
    words = (*words, "prepare=null", "allow_targets=[own_digits]")
    for name, floats, augment in (("bytes", "false", "normalize"), ("floats", "true", "none")):
        block = f"{{_target_: own_digits.Digits, floats: {floats}}}"
        own = (f"data.train={block}", f"data.val={block}", f"augment={augment}")
        done = paceline("train", *words, *own, f"hydra.run.dir={name}", cwd=folder)
        assert done.code == 0, done.err


@pytest.fixture
def loaded(run_dir, own_runs, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    return lambda name: framework.load(name, allow_targets=["own_digits"])


def first_images(run, given):
    with closing(run.batches(given)) as batches:
        return next(batches)["image"][:32]


def test_other_data_may_be_a_store_or_a_dataset(loaded):
    run = loaded("bytes")
    assert torch.equal(first_images(run, VAL), first_images(run, BYTES))
    run = loaded("run")
    assert torch.equal(first_images(run, BYTES), first_images(run, VAL))


def test_bytes_are_no_pixels_for_a_model_that_was_trained_on_floats(loaded):
    run = loaded("floats")
    assert means(run)[1] == 32.0  # of its own validation data
    words = "image is uint8 here, and was float32 in training"
    with pytest.raises(ConfigError, match=rf"C352\]: data.val = digits/val.h5: {words}"):
        first_images(run, VAL)
    with pytest.raises(ConfigError, match=rf"C352\]: images: {words}"):
        run.predict([np.zeros((8, 8, 1), np.uint8)])
    assert run.predict(first_images(run, FLOATS))


def test_an_augment_that_scales_pixels_takes_floats_with_a_note(loaded, capsys):
    run = loaded("run")
    scaled = first_images(run, FLOATS)
    assert torch.allclose(scaled, first_images(run, VAL), atol=1e-5)
    assert "note: data.val = own_digits.Digits: image is float32 here" in capsys.readouterr().out
