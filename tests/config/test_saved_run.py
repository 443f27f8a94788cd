"""A run directory opened for use: its own configuration, weights, classes and batches."""

import json
import shutil
from contextlib import closing

import numpy as np
import pytest
import torch

import framework
from framework.config.saved_run import open_run
from framework.errors import CheckpointError, ConfigError
from framework.measure.clock import NoClock
from framework.system.algorithms import choose_algorithms, is_deterministic
from framework.train.validate import evaluate
from tests.cli.command import paceline
from tests.saved_runs import digits_run, summary_of

OWN = """
import torch
from framework.store.open_store import open_store

class Digits(torch.utils.data.Dataset):
    classes = [str(digit) for digit in range(10)]
    def __init__(self, path="digits/val.h5", floats=False, pair=False):
        self.records = open_store(path).read(torch.arange(32))
        self.floats, self.pair = floats, pair
    def __len__(self):
        return 32
    def __getitem__(self, index):
        image, label = self.records["image"][index], int(self.records["label"][index])
        if self.floats:
            image = image / 255
        return (image, label) if self.pair else {"image": image, "label": label}
"""
VAL = "digits/val.h5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    digits_run(folder, "ema_decay=0.9")
    return folder


@pytest.fixture
def run_dir(folder, monkeypatch):
    monkeypatch.chdir(folder)  # the paths of the data are relative
    return folder / "run"


def means(run, path=None):
    with closing(run.loader(run.source(path))) as loader:
        parts = (run.model, loader, run.objective, run.precision, NoClock(), run.parallel)
        return evaluate(*parts)[:2]


def test_its_validation_is_that_of_training_to_the_bit(run_dir):
    run = framework.load(run_dir, weights="last")
    assert means(run) == (summary_of(run_dir)["val"], 360.0)


def test_the_best_weights_are_the_default(run_dir):
    best = dict(summary_of(run_dir)["best"])
    best.pop("step")
    assert means(framework.load(run_dir))[0] == best


def test_weights_may_be_a_file_or_a_state(run_dir):
    for path in (run_dir / "checkpoints").iterdir():
        assert means(framework.load(run_dir, weights=path))[1] == 360.0


def test_batches_of_a_store_hold_every_record_once_as_the_model_gets_it(run_dir):
    batches = list(framework.load(run_dir).batches("digits/train.h5"))
    indices = torch.cat([batch["index"] for batch in batches])
    assert torch.equal(indices, torch.arange(1437))
    assert batches[0]["image"].dtype == torch.float32


def test_the_training_data_need_not_exist(run_dir, tmp_path):
    kept = tmp_path / "moved"
    shutil.copytree(run_dir, kept)
    shutil.copy(run_dir.parent / "digits" / "val.h5", tmp_path / "val.h5")
    run = framework.load(kept)
    assert means(run, str(tmp_path / "val.h5")) == means(framework.load(run_dir))


def test_a_run_without_it_leaves_the_determinism_of_this_process_on(run_dir):
    choose_algorithms(torch.device("cpu"), deterministic=True)
    assert framework.load(run_dir).parallel.rank == 0
    assert is_deterministic()
    choose_algorithms(torch.device("cpu"), deterministic=False)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"data": 3}', '{"model": "${oc.env:NO_SUCH}"}'])
def test_a_damaged_configuration_is_refused(run_dir, tmp_path, text):
    broken = tmp_path / "broken"
    shutil.copytree(run_dir, broken)
    (broken / "resolved.json").write_text(text)
    with pytest.raises(CheckpointError, match="K120"):
        framework.load(broken)


def test_a_class_that_nobody_allowed_is_not_called(run_dir, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run_dir, other)
    config = json.loads((other / "resolved.json").read_text())
    config["model"] = {"_target_": "mypkg.Net"}
    config["allow_targets"] = ["mypkg"]  # a file must not allow itself anything
    (other / "resolved.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"C105.*model._target_ = mypkg.Net"):
        framework.load(other)


def test_a_file_that_holds_no_weights_is_refused(run_dir, tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="K111"):
        _ = framework.load(run_dir, weights=tmp_path / "text.pt").model


def test_weights_of_another_model_do_not_fit(run_dir, tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="K122"):
        _ = framework.load(run_dir, weights=tmp_path / "other.pt").model


def test_a_run_without_validation_data_needs_a_path(run_dir):
    changes = {"data": {**framework.load(run_dir).config["data"], "val": None}}
    run = open_run(run_dir, (), changes=changes)
    with pytest.raises(ConfigError, match="C350"):
        run.source()


@pytest.fixture(scope="module")
def own_dirs(folder):
    """Train on a Dataset of bytes, which are normalized, and on one of floats, which are not."""
    (folder / "own_digits.py").write_text(OWN)
    words = ("recipes=digits", "dataset=null", "data=dataset", "max_steps=1", "workers.num=0")
    for name, floats, augment in (("bytes", "false", "normalize"), ("floats", "true", "none")):
        block = f"{{_target_: own_digits.Digits, floats: {floats}}}"
        own = (f"data.train={block}", f"data.val={block}", f"augment={augment}")
        place = ("allow_targets=[own_digits]", f"hydra.run.dir={name}", "prepare=null")
        done = paceline("train", *words, *own, *place, cwd=folder)
        assert done.code == 0, done.err


@pytest.fixture
def loaded(run_dir, own_dirs, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    return lambda name: framework.load(name, allow_targets=["own_digits"])


def own(**options):
    return {"_target_": "own_digits.Digits", **options}


def first_images(run, given):
    with closing(run.batches(given)) as batches:
        return next(batches)["image"][:32]


def test_other_data_of_a_run_on_a_dataset_may_be_a_store(loaded):
    run = loaded("bytes")
    assert torch.equal(first_images(run, VAL), first_images(run, own()))


def test_other_data_of_a_run_on_a_store_may_be_a_dataset(loaded):
    run = loaded("run")
    assert torch.equal(first_images(run, own()), first_images(run, VAL))


def test_bytes_are_no_pixels_for_a_model_that_was_trained_on_floats(loaded):
    run = loaded("floats")
    words = "image is uint8 here, and was float32 in training"
    with pytest.raises(ConfigError, match=rf"C352\]: data.val = digits/val.h5: {words}"):
        first_images(run, VAL)
    with pytest.raises(ConfigError, match=rf"C352\]: images: {words}"):
        run.predict([np.zeros((8, 8, 1), np.uint8)])
    assert run.predict(first_images(run, own(floats=True)))


def test_an_augment_that_scales_pixels_takes_floats_with_a_note(loaded, capsys):
    run = loaded("run")
    scaled = first_images(run, own(floats=True))
    assert torch.allclose(scaled, first_images(run, VAL), atol=1e-5)
    assert "note: data.val = own_digits.Digits: image is float32 here" in capsys.readouterr().out
