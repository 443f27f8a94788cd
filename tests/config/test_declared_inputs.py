"""What a model of another library declares about its inputs, and the values that it decides."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from framework.config.assemble import assemble
from framework.config.choice_notes import choice_notes
from framework.config.declared_inputs import NOTHING, DeclaredInputs, declared_inputs
from framework.errors import ConfigError
from tests.commands.tune.test_candidate import config_of
from tests.config.test_foreign_models import AUTO, imported, words
from tests.config.test_init_weights import SYNTHETIC

FIXED = ("data=synthetic", *SYNTHETIC[1:])
PROCESSOR = {"size": {"height": 8, "width": 6}, "image_mean": [0.5], "image_std": [0.25]}


def processor(**changes):
    Path("folder").mkdir(exist_ok=True)
    text = json.dumps({**PROCESSOR, **changes})
    Path("folder/preprocessor_config.json").write_text(text)


def of_folder():
    block = {"_target_": AUTO, "pretrained_model_name_or_path": "folder"}
    return declared_inputs({"model": block, "init": {"weights": None}})


# ------------------------------------------------------------------------------ what is declared


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
    declared = of_folder()
    assert (declared.size, declared.resize) == (size, resize)


def test_mean_and_deviation_of_a_folder_are_declared():
    processor()
    assert of_folder()[2:] == ([0.5], [0.25])


@pytest.mark.parametrize("changes", [{"do_normalize": False}, {"rescale_factor": 1 / 127.5}])
def test_mean_and_deviation_for_other_numbers_are_left_out(changes):
    processor(**changes)
    assert of_folder()[2:] == (None, None)


def test_a_folder_may_declare_nothing():
    Path("folder").mkdir()
    assert of_folder() == NOTHING


BAD = ["[]", "{", '{"size": -1}', '{"size": {"height": 1e99, "width": 1}}', '{"size": [1, 2, 3]}']
BAD += ['{"image_mean": ["x"]}', '{"image_mean": [NaN]}', '{"image_mean": 5}', "[" * 100_000]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_damaged_description_is_refused(text):
    Path("folder").mkdir()
    Path("folder/preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^error\[C305\]: folder/preprocessor_config.json"):
        of_folder()


def test_a_model_of_ours_declares_nothing():
    block = {"_target_": "framework.model.resnet18.ResNet18", "pretrained": True}
    assert declared_inputs({"model": block, "init": {"weights": None}}) == NOTHING


def test_timm_declares_its_inputs_if_weights_are_given():
    imported("timm")
    block = {"_target_": "timm.create_model", "model_name": "resnet18"}
    assert declared_inputs({"model": block, "init": {"weights": None}}) == NOTHING
    declared = declared_inputs({"model": block, "init": {"weights": "x.pth"}})
    assert declared.size == [224, 224]
    assert declared.mean == pytest.approx([0.485, 0.456, 0.406])


def test_a_run_of_ours_knows_its_own_numbers():
    Path("run").mkdir()
    block = {"_target_": "timm.create_model", "model_name": "resnet18"}
    assert declared_inputs({"model": block, "init": {"weights": "run"}}) == NOTHING


def test_torchvision_declares_its_inputs_if_weights_are_given():
    imported("torchvision")
    block = {"_target_": "torchvision.models.resnet18"}
    declared = declared_inputs({"model": block, "init": {"weights": "x.pth"}})
    assert (declared.size, declared.resize) == ([224, 224], 256)
    assert declared.std == pytest.approx([0.229, 0.224, 0.225])


# --------------------------------------------------------------------------------- what it decides


def notes_of_run(*typed):
    with closing(assemble(config_of(*FIXED, *words(), *typed), ())) as assembly:
        return assembly, choice_notes(assembly)


def test_auto_becomes_what_the_model_declares_with_a_note():
    processor()
    assembly, notes = notes_of_run("transform=resize", "transform.size=auto")
    assert assembly.config["transform"]["size"] == [8, 6]
    assert assembly.config["augment"]["mean"] == [0.5]
    note = "from the model: transform.size=[8,6], augment.mean=[0.5], augment.std=[0.25]"
    assert note in notes


def test_the_transform_of_validation_has_the_size_too():
    processor()
    typed = ("transform@data.val_transform=resize", "data.val_transform.size=auto")
    config = notes_of_run("transform=resize", *typed)[0].config
    assert config["data"]["val_transform"]["size"] == [8, 6]


def test_a_typed_value_counts_and_a_contradiction_is_a_note():
    processor()
    typed = ("augment.mean=[0.1]", "augment.std=[0.25]", "transform=resize", "transform.size=[8,8]")
    assembly, notes = notes_of_run(*typed)
    assert assembly.config["augment"]["mean"] == [0.1]
    assert "augment.mean=[0.1] differs from what the model declares, [0.5]" in notes
    assert "transform.size=[8, 8] differs from what the model declares, [8, 6]" in notes
    assert not any("augment.std" in note for note in notes)


def test_a_mean_for_other_channels_is_left_to_the_data():
    processor(image_mean=[0.1, 0.2, 0.3], image_std=[1, 1, 1])
    assembly, notes = notes_of_run()
    assert len(assembly.config["augment"]["mean"]) == 1
    assert not any("the model" in note for note in notes)


def test_a_size_that_nobody_declares_must_be_typed():
    with pytest.raises(ConfigError, match=r"C304\]: transform.size = auto: cannot be known"):
        assemble(config_of(*SYNTHETIC, "transform=resize", "transform.size=auto"), ())


def test_what_is_declared_is_found_by_its_key():
    assert DeclaredInputs(size=[1, 2]).value("size") == [1, 2]
    assert DeclaredInputs().value("other") is None
