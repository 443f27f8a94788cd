"""What a configuration may call, and with which arguments, checked without importing it."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from framework.config import targets
from framework.config.targets import Signature, check_name, check_targets, static_signature
from framework.errors import ConfigError
from framework.loader.plain import PlainLoader

LOADER = {"_target_": "framework.loader.prefetch.PrefetchLoader", "depth": 4, "pin_memory": False}


def test_blocks_are_found_with_their_places():
    config = {"a": {"_target_": "x", "inner": {"_target_": "y"}}, "b": [{"_target_": "z"}, 3]}
    places = [(where, block["_target_"]) for where, block in targets.targets(config)]
    assert places == [("a", "x"), ("a.inner", "y"), ("b.0", "z")]


def test_arguments_that_are_there_pass():
    special = dict.fromkeys(("_partial_", "_args_"))
    check_targets({"loader": {**LOADER, **special}, "seed": 1}, ())
    check_targets({"optim": {"_target_": "torch.optim.SGD", "lr": 0.1, "scaling": "none"}}, ())


@pytest.mark.parametrize(
    ("where", "block", "line"),
    [
        ("loader", {**LOADER, "dept": 4}, r"loader\.dept = 4.*did you mean 'loader\.depth'"),
        (
            "optim",
            {"_target_": "torch.optim.AdamW", "weight_decai": 0.1},
            r"weight_decai.*did you mean 'optim\.weight_decay'",
        ),
        (
            "schedule",
            {"_target_": "framework.schedule.constant.Constant", "per": "epoch"},
            r"schedule\.per = epoch: .*has no argument 'per'",
        ),
    ],
    ids=["ours", "torch", "schedule"],
)
def test_an_unknown_argument_is_answered_with_the_nearest(where, block, line):
    with pytest.raises(ConfigError, match=rf"C106.*{line}"):
        check_targets({where: block}, ())


OF_OBJECTS = {"_target_": "framework.data.dataset.dataset_source", "collate": "mine.padded"}
HDF5 = {"source": {"_target_": "framework.data.hdf5.hdf5_source", "collate": "pad"}}
MIXTURE = {"source": {"_target_": "framework.data.mixture.mixture_source", "weights": None}}
CLIPS = {"_target_": "mine.Clips", "split": "train"}


def test_a_named_collate_becomes_a_block_that_is_checked():
    config = {"folds": None, "order": {}, "data": {"train": {}, "source": OF_OBJECTS}}
    made = targets.completed(config)["data"]["source"]["collate"]
    assert made == {"_target_": "mine.padded", "_partial_": True}
    assert config["data"]["source"]["collate"] == "mine.padded"
    assert targets.completed({**config, "data": HDF5})["data"] == HDF5


@pytest.mark.parametrize(
    ("data", "val", "names"),
    [
        *((HDF5, None, []), (HDF5, "a.h5", [""]), (HDF5, {"a": "a.h5", "b": "b.h5"}, ["a", "b"])),
        *((HDF5, CLIPS, [""]), (HDF5, {"a": CLIPS, "b": CLIPS}, ["a", "b"])),
        *((MIXTURE, "a.h5", [""]), (MIXTURE, {"web": "a.h5", "books": "b.h5"}, [""])),
        (MIXTURE, {"a": {"web": "a.h5"}, "b": {"web": "b.h5", "books": "c.h5"}}, ["a", "b"]),
    ],
)
def test_a_mapping_names_validation_sets_except_the_stores_of_a_mixture(data, val, names):
    assert list(targets.val_sets({**data, "val": val})) == names


SOURCE = """
from dataclasses import dataclass

raise SystemExit("this module was executed")

def function(a, /, b, *, c=1): ...
def anything(a, **others): ...

class Plain:
    def __init__(self, x, y=2): ...

class Empty: ...

class Child(Plain): ...

@dataclass(frozen=True)
class Record:
    one: int
    two: str = ""
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("inner.function", Signature(("a", "b", "c"), False)),
        ("inner.anything", Signature(("a",), True)),
        ("inner.Plain", Signature(("x", "y"), False)),
        ("inner.Empty", Signature((), False)),
        ("inner.Record", Signature(("one", "two"), False)),
        ("inner.Child", Signature(("x", "y"), False)),
        ("inner.Missing", None),
        ("Other", Signature(("x", "y"), False)),  # passed on by the package
    ],
)
def test_a_signature_is_read_without_running_the_module(name, expected, tmp_path, monkeypatch):
    package = f"unrun_{tmp_path.name.replace('-', '_')}"  # modules are remembered by their name
    Path(package).mkdir()
    Path(package, "__init__.py").write_text(f"from {package}.inner import Plain as Other\n")
    Path(package, "inner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert static_signature(f"{package}.{name}") == expected
    assert f"{package}.inner" not in sys.modules


@pytest.mark.parametrize(
    "target",
    [
        *("no_such_package.Thing", "framework.no_such_module.Thing", "framework", "math.sqrt", ""),
        "framework.system.durable.os.system",
    ],
)
def test_what_has_no_source_has_no_signature(target):
    assert static_signature(target) is None


def test_a_signature_has_the_names_that_python_reads():
    signature = static_signature("framework.loader.plain.PlainLoader")
    assert signature is not None
    assert list(signature.names) == list(inspect.signature(PlainLoader).parameters)


def test_a_module_of_the_present_directory_is_read_though_no_path_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    before = list(sys.path)
    for number, argument in enumerate(("drop", "width")):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        text = f"raise SystemExit\nclass Net:\n  def __init__(self, {argument}): ...\n"
        Path("unrun_here.py").write_text(text)
        assert static_signature("unrun_here.Net") == Signature((argument,), False)
    assert sys.path == before
    assert "unrun_here" not in sys.modules


FILES = [
    *targets.CONF.glob("*/*.yaml"),
    *(targets.ROOT / "recipes").glob("*.yaml"),
    *(path for path in targets.ROOT.glob("examples/**/*.yaml") if "configs" not in path.parts),
]
OWN = (
    *("paceline_examples.", "src.", "sines."),
    *(f"{path.stem}." for path in targets.ROOT.glob("examples/**/*.py")),
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_choice_and_every_recipe_may_name_what_it_names(path):
    content = yaml.safe_load(path.read_text())
    if path.parent.name != "recipes":
        content = {path.parent.name: content}
    for where, block in targets.targets(content):
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
        *(("model", "os.system"), ("model", ""), ("model", 3)),
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
    assert targets.as_prefixes(["a", "b.", "", "c.d"]) == ("a.", "b.", "c.d.")
    check_name("model", "mypkg.Net", targets.as_prefixes(["mypkg"]))
    with pytest.raises(ConfigError, match="C105"):
        check_name("model", "mypkg2.Net", targets.as_prefixes(["mypkg"]))


def test_nothing_is_imported_to_decide():
    code = (
        "import sys; from framework.config.targets import check_name; "
        "check_name('model', 'torch.nn.Linear', ()); "
        "check_name('metrics.a', 'torchmetrics.classification.AUROC', ()); "
        "print(*sorted({'torch', 'torchmetrics', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
