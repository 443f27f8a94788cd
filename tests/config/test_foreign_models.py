"""Models of timm, torchvision and transformers: named without glue, and without a download."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config.build import build
from framework.config.foreign_models import (
    advice,
    is_foreign,
    is_from_folder,
    is_home,
    secured,
)
from framework.config.targets import check_targets
from framework.errors import CheckpointError, ConfigError
from tests.config.test_init_weights import parts_of

AUTO = "transformers.AutoModelForImageClassification.from_pretrained"
ALLOWED = ("timm.", "torchvision.", "transformers.")


def imported(name):
    """Return a library, or skip the test with the reason why it cannot be imported."""
    return pytest.importorskip(name, exc_type=(ImportError, RuntimeError))


def folder(num_labels=10, path="folder", **changes):
    """Save a small ResNet with random weights, as Hugging Face does, and return the model."""
    transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_channels": 1}
    config = transformers.ResNetConfig(
        **{**sizes, **changes}, layer_type="basic", num_labels=num_labels
    )
    transformers.utils.logging.disable_progress_bar()
    model = transformers.ResNetForImageClassification(config)
    model.save_pretrained(path)
    return model


def words(path="folder", **keys):
    block = {"_target_": AUTO, "pretrained_model_name_or_path": path, **keys}
    return ["model=null", *(f"+model.{key}={value}" for key, value in block.items())]


# ------------------------------------------------------------------------------ what may be named

NAMED = (
    "timm.create_model",
    "torchvision.models.resnet18",
    "torchvision.models.segmentation.fcn_resnet50",
    AUTO,
    "transformers.ResNetConfig",
    "transformers.ViTForImageClassification",
)
OTHERS = (
    "timm.models.load_checkpoint",
    "timm.create_model.__globals__",
    "torchvision.models.get_model",
    "torchvision.io.read_file",
    "transformers.pipeline",
    "transformers.Trainer",
    "transformers.utils.import_utils.os.system",
    "transformers.AutoModel.from_pretrained.__func__",
)


@pytest.mark.parametrize("name", NAMED)
def test_what_only_builds_a_model_may_be_named(name):
    assert is_foreign(name)


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_of_these_libraries_may_be_named(name):
    assert not is_foreign(name)


def test_a_model_must_be_defined_in_its_own_library():
    assert is_home("timm.models._factory.create_model", "timm.create_model")
    assert not is_home("os.system", "timm.create_model")


def test_only_models_come_from_a_folder():
    assert is_from_folder(AUTO)
    assert not is_from_folder("transformers.AutoConfig.from_pretrained")
    assert not is_from_folder("timm.create_model")


def test_what_is_not_installed_is_named_with_its_extra():
    assert "pip install 'timm>=1' torchvision" in advice("timm.create_model")
    assert advice("mine.Net") == "correct the name"


# ---------------------------------------------------------------------------------- what is unsafe

UNSAFE = [
    ("timm.create_model", {"pretrained": True}),
    ("timm.create_model", {"_args_": ["resnet18", True]}),
    ("torchvision.models.resnet18", {"_args_": [True]}),
    ("timm.create_model", {"checkpoint_path": "evil.pt"}),
    ("timm.create_model", {"pretrained_cfg_overlay": {"file": "evil.pt"}}),
    ("timm.create_model", {"model_name": "hf-hub:someone/model"}),
    ("timm.create_model", {"model_name": "local-dir:folder"}),
    ("torchvision.models.resnet18", {"weights": "DEFAULT"}),
    ("torchvision.models.segmentation.fcn_resnet50", {"weights_backbone": "DEFAULT"}),
    (AUTO, {"trust_remote_code": True}),
    (AUTO, {"weights_only": False}),
    (AUTO, {"local_files_only": False}),
    (AUTO, {"attn_implementation": "someone/kernel"}),
    ("transformers.AutoModel.from_config", {"trust_remote_code": True}),
]


@pytest.mark.parametrize(("target", "keys"), UNSAFE)
def test_what_downloads_or_executes_is_refused_unless_the_library_is_allowed(target, keys):
    block = {"_target_": target, **keys}
    if target.endswith("from_pretrained"):
        block["pretrained_model_name_or_path"] = "."
    with pytest.raises(ConfigError, match=rf"C302\]: model.{next(iter(keys))} = .*allow_targets"):
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


def test_a_model_of_segmentation_downloads_no_backbone():
    block = secured("model", {"_target_": "torchvision.models.segmentation.fcn_resnet50"}, ())
    assert block["weights_backbone"] is None


def test_another_block_stays_as_it_is():
    block = {"_target_": "torch.nn.Linear", "pretrained": True}
    assert secured("model", block, ()) is block


def test_a_folder_with_code_runs_none(monkeypatch):
    folder()
    text = Path("folder/config.json").read_text()
    mapped = '{"auto_map": {"AutoModelForImageClassification": "evil.Net"},'
    Path("folder/config.json").write_text(text.replace("{", mapped, 1))
    Path("folder/evil.py").write_text("open('canary', 'w').close()\nclass Net: pass\n")
    build("model", {"_target_": AUTO, "pretrained_model_name_or_path": "folder"}, ())
    assert not Path("canary").exists()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


# ------------------------------------------------------------------------------------- transformers


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


# --------------------------------------------------------------------------- timm and torchvision


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


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    block = {"_target_": "timm.create_model", "model_name": "resnet18"}
    with pytest.raises(ConfigError, match=r"C105\].*pip install 'paceline\[timm\]'"):
        build("model", block, ())
