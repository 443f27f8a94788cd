"""Models of timm, torchvision and transformers: named without glue, and without a download."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config.auto import NOTHING, DeclaredInputs, declared_inputs
from framework.config.build import build
from framework.config.targets import check_targets, is_foreign, is_from_folder, secured
from framework.errors import CheckpointError, ConfigError
from framework.run import choice_notes
from tests.config.assembled import assembled, parts_of

AUTO = "transformers.AutoModelForImageClassification.from_pretrained"
ALLOWED = ("timm.", "torchvision.", "transformers.")
FOLDER = {"_target_": AUTO, "pretrained_model_name_or_path": "folder"}
TIMM = {"_target_": "timm.create_model", "model_name": "resnet18"}


def imported(name):
    """Return a library, or skip the test with the reason why it cannot be imported."""
    return pytest.importorskip(name, exc_type=(ImportError, RuntimeError))


def folder(num_labels=10):
    """Save a small ResNet with random weights, as Hugging Face does, and return the model."""
    transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_channels": 1}
    config = transformers.ResNetConfig(**sizes, layer_type="basic", num_labels=num_labels)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.ResNetForImageClassification(config)
    model.save_pretrained("folder")
    return model


def words(**keys):
    """Return words that choose the model in ``folder``."""
    return ["model=null", *(f"+model.{key}={value}" for key, value in {**FOLDER, **keys}.items())]


# ------------------------------------------------------------------------------ what may be named


@pytest.mark.parametrize(
    "name",
    [
        *("timm.create_model", "torchvision.models.resnet18", AUTO, "transformers.ResNetConfig"),
        *("torchvision.models.segmentation.fcn_resnet50", "transformers.ViTForImageClassification"),
    ],
)
def test_what_only_builds_a_model_may_be_named(name):
    assert is_foreign(name)


@pytest.mark.parametrize(
    "name",
    [
        *("timm.models.load_checkpoint", "timm.create_model.__globals__"),
        *("torchvision.models.get_model", "torchvision.io.read_file", "transformers.pipeline"),
        *("transformers.Trainer", "transformers.utils.import_utils.os.system"),
        "transformers.AutoModel.from_pretrained.__func__",
    ],
)
def test_nothing_else_of_these_libraries_may_be_named(name):
    assert not is_foreign(name)


def test_only_models_come_from_a_folder():
    assert is_from_folder(AUTO)
    assert not is_from_folder("transformers.AutoConfig.from_pretrained")
    assert not is_from_folder("timm.create_model")


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"C105\].*pip install 'timm>=1' torchvision"):
        build("model", TIMM, ())


# ---------------------------------------------------------------------------------- what is unsafe


@pytest.mark.parametrize(
    ("target", "key", "value"),
    [
        ("timm.create_model", "pretrained", True),
        ("timm.create_model", "_args_", ["resnet18", True]),
        ("timm.create_model", "checkpoint_path", "evil.pt"),
        ("timm.create_model", "pretrained_cfg_overlay", {"file": "evil.pt"}),
        ("timm.create_model", "model_name", "hf-hub:someone/model"),
        ("timm.create_model", "model_name", "local-dir:folder"),
        ("torchvision.models.resnet18", "weights", "DEFAULT"),
        ("torchvision.models.segmentation.fcn_resnet50", "weights_backbone", "DEFAULT"),
        (AUTO, "trust_remote_code", True),
        (AUTO, "weights_only", False),
        (AUTO, "local_files_only", False),
        (AUTO, "attn_implementation", "someone/kernel"),
    ],
)
def test_what_downloads_or_executes_is_refused_unless_the_library_is_allowed(target, key, value):
    block = {"_target_": target, key: value}
    if target == AUTO:
        block["pretrained_model_name_or_path"] = "."
    with pytest.raises(ConfigError, match=rf"C302\]: model.{key} = .*allow_targets"):
        check_targets({"model": block}, ())
    secured("model", block, ALLOWED)


def test_a_model_inside_another_block_is_checked_too():
    inner = {"_target_": "timm.create_model", "pretrained": True}
    with pytest.raises(ConfigError, match=r"C302\]: model.backbone.pretrained"):
        check_targets({"model": {"_target_": "torch.nn.Sequential", "backbone": inner}}, ())


def test_a_name_on_the_hub_is_no_folder():
    block = {"_target_": AUTO, "pretrained_model_name_or_path": "google/vit"}
    with pytest.raises(ConfigError, match=r"C303\]: .*google/vit: is no folder.*hf download"):
        check_targets({"model": block}, ALLOWED)


def test_a_folder_with_code_runs_none():
    folder()
    text = Path("folder/config.json").read_text()
    mapped = '{"auto_map": {"AutoModelForImageClassification": "evil.Net"},'
    Path("folder/config.json").write_text(text.replace("{", mapped, 1))
    Path("folder/evil.py").write_text("open('canary', 'w').close()\nclass Net: pass\n")
    build("model", FOLDER, ())
    assert not Path("canary").exists()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


# --------------------------------------------------------------------------------- what is trained


def test_a_model_in_a_folder_is_trained_as_it_is():
    theirs = folder()
    assembly, parts = parts_of(*words())
    own = parts.model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in theirs.state_dict().items())
    assert assembly.notes == [f"model: loaded {len(own)} of {len(own)} tensors"]


def test_its_head_is_new_for_another_number_of_classes():
    folder(num_labels=1000)
    assembly, parts = parts_of(*words(num_labels="auto"))
    assert parts.model.config.num_labels == 10
    assert "(10 classes instead of 1000)" in assembly.notes[0]


def test_a_folder_of_another_model_is_refused():
    folder()
    with pytest.raises(CheckpointError, match="K115"):
        parts_of(*words(hidden_sizes="[4,16]"))


def test_a_class_of_transformers_starts_from_weights_in_a_file():
    torch.save(folder(num_labels=3).state_dict(), "x.pth")
    nested = "{_target_: transformers.AutoConfig.from_pretrained, _args_: [folder], num_labels: 10}"
    target = "transformers.ResNetForImageClassification"
    block = ["model=null", f"+model._target_={target}", f"+model.config={nested}"]
    assembly, _ = parts_of(*block, "init.weights=x.pth")
    assert "(10 classes instead of 3)" in assembly.notes[0]


def test_a_model_of_timm_starts_from_weights_in_a_file():
    timm = imported("timm")
    torch.save(timm.create_model("resnet18", in_chans=1).state_dict(), "x.pth")
    block = ["+model._target_=timm.create_model", "+model.model_name=resnet18"]
    sizes = ["+model.in_chans=auto", "+model.num_classes=auto"]
    assembly, parts = parts_of("model=null", *block, *sizes, "init.weights=x.pth")
    assert isinstance(parts.model, nn.Module)
    assert "(10 classes instead of 1000)" in assembly.notes[0]


def test_a_model_of_torchvision_is_built_by_its_name():
    imported("torchvision")
    block = {"_target_": "torchvision.models.resnet18", "num_classes": 7}
    assert build("model", block, ()).fc.out_features == 7


# ------------------------------------------------------------------------- inputs that are declared


def processor(**changes):
    """Write the description of inputs that Hugging Face keeps in a model's folder."""
    whole = {"size": {"height": 8, "width": 6}, "image_mean": [0.5], "image_std": [0.25]}
    Path("folder").mkdir(exist_ok=True)
    Path("folder/preprocessor_config.json").write_text(json.dumps({**whole, **changes}))


def of_folder():
    return declared_inputs({"model": FOLDER, "init": {"weights": None}})


@pytest.mark.parametrize(
    ("changes", "size", "resize"),
    [
        ({}, [8, 6], None),
        ({"size": 8}, [8, 8], None),
        ({"size": {"shortest_edge": 8}, "crop_pct": 0.5}, [8, 8], 16),
        ({"size": {"shortest_edge": 8}}, None, None),
        ({"size": {"shortest_edge": 9}, "crop_size": 8, "do_center_crop": True}, [8, 8], 9),
        ({"size": None}, None, None),
    ],
)
def test_the_size_of_a_folder_is_that_after_the_crop(changes, size, resize):
    processor(**changes)
    assert of_folder() == DeclaredInputs(size, resize, [0.5], [0.25])


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{", '{"size": -1}', '{"size": {"height": 1e99, "width": 1}}'),
        *('{"size": [1, 2, 3]}', '{"image_mean": 5}'),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_damaged_description_is_refused(text):
    Path("folder").mkdir()
    Path("folder/preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^error\[C305\]: folder/preprocessor_config.json"):
        of_folder()


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ({"_target_": "framework.model.resnet18.ResNet18", "pretrained": True}, None),
        (TIMM, None),
        (TIMM, "run"),  # a run of ours knows its own numbers
    ],
    ids=["ours", "without weights", "run"],
)
def test_other_models_declare_nothing(model, weights):
    Path("run").mkdir()
    assert declared_inputs({"model": model, "init": {"weights": weights}}) == NOTHING


@pytest.mark.parametrize(
    ("library", "block"),
    [("timm", TIMM), ("torchvision", {"_target_": "torchvision.models.resnet18"})],
)
def test_libraries_declare_the_inputs_of_pretrained_weights(library, block):
    imported(library)
    declared = declared_inputs({"model": block, "init": {"weights": "x.pth"}})
    assert declared.size == [224, 224]
    assert declared.mean == pytest.approx([0.485, 0.456, 0.406])
    assert declared.std == pytest.approx([0.229, 0.224, 0.225])


# ------------------------------------------------------------------------ what declarations decide


def declared_in_run(*typed):
    """Return the configuration and the notes of a run on the model in ``folder``."""
    with assembled(*words(), *typed) as assembly:
        return assembly.config, choice_notes(assembly)


def test_auto_becomes_what_the_model_declares_with_a_note():
    processor()
    config, notes = declared_in_run("transform=resize", "transform.size=auto")
    assert config["transform"]["size"] == [8, 6]
    assert config["augment"]["mean"] == [0.5]
    note = "from the model: transform.size=[8,6], augment.mean=[0.5], augment.std=[0.25]"
    assert note in notes


def test_the_transform_of_validation_has_the_declared_size_too():
    processor()
    typed = ("data.val=val", "transform@data.val_transform=resize", "data.val_transform.size=auto")
    config, _ = declared_in_run("transform=resize", *typed)
    assert config["data"]["val_transform"]["size"] == [8, 6]


def test_a_typed_value_counts_and_a_contradiction_is_a_note():
    processor()
    typed = ("augment.mean=[0.1]", "augment.std=[0.25]", "transform=resize", "transform.size=[8,8]")
    config, notes = declared_in_run(*typed)
    assert config["augment"]["mean"] == [0.1]
    assert "augment.mean=[0.1] differs from what the model declares, [0.5]" in notes
    assert "transform.size=[8, 8] differs from what the model declares, [8, 6]" in notes
    assert not any("augment.std" in note for note in notes)


def test_a_mean_for_other_channels_is_left_to_the_data():
    processor(image_mean=[0.1, 0.2, 0.3], image_std=[1, 1, 1])
    config, notes = declared_in_run()
    assert len(config["augment"]["mean"]) == 1
    assert not any("the model" in note for note in notes)


def test_a_size_that_nobody_declares_must_be_typed():
    with pytest.raises(ConfigError, match=r"C304\]: transform.size = auto: cannot be known"):
        assembled("transform=resize", "transform.size=auto")
