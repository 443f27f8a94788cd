"""Which names a configuration may call in which place, decided without importing anything."""

import subprocess
import sys

import pytest
import yaml

from framework.config.paths import CONF, ROOT
from framework.config.targets import as_prefixes, check_name, check_targets, targets
from framework.errors import ConfigError

FILES = [
    *CONF.glob("*/*.yaml"),
    *(ROOT / "recipes").glob("*.yaml"),
    *ROOT.glob("examples/**/*.yaml"),
]
OWN = (
    "cells.",
    "keywords.",
    "paceline_examples.",
    "rosettes.",
    "sines.",
)  # packages of the examples, which are allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_choice_and_every_recipe_may_name_what_it_names(path):
    content = yaml.safe_load(path.read_text())
    if path.parent.name != "recipes":
        content = {path.parent.name: content}
    for where, block in targets(content):
        if block["_target_"] not in ("???", "${..function}"):
            check_name(where, block["_target_"], OWN)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("model", "torch.nn.Sequential"),
        ("model.layers.0", "torch.nn.Linear"),
        ("objective.losses.huber", "torch.nn.HuberLoss"),
        ("objective.teacher", "framework.model.resnet9.ResNet9"),
        ("optim", "torch.optim.Adafactor"),
        ("schedule", "torch.optim.lr_scheduler.SequentialLR"),
        ("schedule.schedulers.0", "torch.optim.lr_scheduler.LinearLR"),
        ("metrics.kappa", "torchmetrics.classification.MulticlassCohenKappa"),
        ("metrics.dice", "torchmetrics.segmentation.DiceScore"),
        ("metrics.iou", "torchmetrics.JaccardIndex"),
        ("model.layers.0", "framework.model.airbench.Whitening"),
        ("prepare.train.input", "framework.input.folder.FolderInput"),
        ("prepare.val.clean.input", "framework.input.folder.FolderInput"),
        ("data.writer", "framework.store.hdf5_store.HDF5Writer"),
        ("data.val_transform", "framework.transform.resize.Resize"),
        ("model", "timm.create_model"),
    ],
)
def test_each_place_takes_its_own_list(where, name):
    check_name(where, name, ())


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("model", "torch.nn.utils._deprecation_utils.lazy_deprecated_import"),
        ("model", "torch.optim.swa_utils.AveragedModel"),
        ("model", "torch.nn.Module.__call__"),
        ("model", "torch.optim.SGD"),
        ("model", "framework.store.hdf5_store.HDF5Writer"),
        ("model", "framework.input.digits_input.DigitsInput"),
        ("model", "mine.Net"),
        ("optim", "torch.nn.Linear"),
        ("optim", "torch.optim.swap_in_optimizer_params_and_state"),
        ("optim", "torch.optim.swa_utils.SWALR"),
        ("schedule", "torch.optim.swa_utils.SWALR"),
        ("metrics.bert", "torchmetrics.text.BERTScore"),
        ("metrics.fid", "torchmetrics.image.FrechetInceptionDistance"),
        ("sink.x", "framework.store.folder_store.FolderWriter"),
        ("data.source", "framework.store.hdf5_store.HDF5Writer"),
        ("data.train", "mine.Clips"),
        ("watchers.x", "torch.nn.Linear"),
        ("objective", "timm.create_model"),
        ("input", "framework.data.hdf5.hdf5_source"),
        ("model", "transformers.Trainer"),
        ("model", "os.system"),
        ("model", ""),
        ("model", 3),
    ],
)
def test_a_name_outside_its_place_is_refused(where, name):
    with pytest.raises(ConfigError, match=r"C105.*\._target_.*not on the list.*allow_targets"):
        check_name(where, name, ())


def test_a_name_of_another_place_or_spelling_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'torch\.optim\.AdamW'"):
        check_name("optim", "torch.optim.AdammW", ())
    with pytest.raises(ConfigError) as caught:
        check_name("model", "torch.nn.init.zeros_", ())
    assert "did you mean" not in str(caught.value)


def test_a_target_inside_a_target_is_checked_too():
    block = {"_target_": "torch.nn.Sequential", "layers": [{"_target_": "os.system"}]}
    with pytest.raises(ConfigError, match=r"C105.*model\.layers\.0"):
        check_targets({"model": block}, ())


def test_a_package_of_the_user_is_allowed_with_what_is_inside():
    assert as_prefixes(["a", "b.", "", "c.d"]) == ("a.", "b.", "c.d.")
    check_name("model", "mypkg.Net", as_prefixes(["mypkg"]))
    with pytest.raises(ConfigError, match="C105"):
        check_name("model", "mypkg2.Net", as_prefixes(["mypkg"]))


def test_nothing_is_imported_to_decide():
    code = (
        "import sys; from framework.config.targets import check_name; "
        "check_name('model', 'torch.nn.Linear', ()); "
        "check_name('metrics.a', 'torchmetrics.classification.AUROC', ()); "
        "print(*sorted({'torch', 'torchmetrics', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
