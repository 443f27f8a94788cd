"""Parts are built from their blocks: what may be called, and with which arguments."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config import auto, targets
from framework.config.build import build, build_schedule, compile_model, takes_optimizer
from framework.errors import CheckpointError, ConfigError, ResourceError
from framework.run import choice_notes
from framework.schedule.cosine import Cosine
from tests.config.assembled import assembled, parts_of

COSINE = {"_target_": "framework.schedule.cosine.Cosine", "warmup_steps": 3, "final": 0.5}
AMP = {"_target_": "framework.precision.amp.AMP", "dtype": "bf16"}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.5}
CPU = torch.device("cpu")


def refused(where, block, allowed=(), **runtime):
    """Return the line of the ConfigError that ``build`` raises."""
    with pytest.raises(ConfigError) as caught:
        build(where, block, allowed, **runtime)
    return str(caught.value)


# --------------------------------------------------------------------------------- what is built


def test_a_block_becomes_the_part_that_it_describes():
    schedule = build("schedule", COSINE, ())
    assert type(schedule) is Cosine
    assert (schedule.warmup_steps, schedule.final) == (3, 0.5)
    assert build("schedule", COSINE, ()) is not schedule


def test_nested_blocks_are_built_first():
    layers = [
        {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3},
        {"_target_": "torch.nn.ReLU"},
    ]
    model = build("model", {"_target_": "torch.nn.Sequential", "_args_": layers}, ())
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU]


def test_a_package_the_user_allows_is_built(monkeypatch, tmp_path):
    text = "class Net:\n    def __init__(self, width):\n        self.width = width\n"
    (tmp_path / "mynets.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    block = {"_target_": "mynets.Net", "width": 5}
    assert refused("model", block).startswith("error[C105]")
    assert build("model", block, ("mynets.",)).width == 5


# ---------------------------------------------------------------------------- arguments and values


@pytest.mark.parametrize(
    ("where", "block", "runtime", "line"),
    [
        (
            *("schedule", {**COSINE, "warmup": 1}, {}),
            "C106]: schedule: Cosine: got an unexpected keyword argument 'warmup'",
        ),
        (
            "schedule",
            {"_target_": COSINE["_target_"], "final": 0.0},
            {},
            "C106]: schedule: Cosine: missing a required argument: 'warmup_steps'",
        ),
        ("precision", {**AMP, "device": "cuda:7"}, {"device": CPU}, "C106]: precision.device"),
        ("precision", {**AMP, "dtype": "fp8"}, {"device": CPU}, "C110]: precision.dtype = fp8"),
        ("schedule", {**COSINE, "final": "low"}, {}, "C101]: schedule.final = low"),
        (
            "optim",
            {**SGD, "lr": -1.0},
            {"params": [nn.Parameter(torch.ones(1))]},
            "C113]: optim = torch.optim.SGD: Invalid learning rate: -1.0; correct its arguments",
        ),
        ("data.val", "few.h5", {}, "C113]: data.val = few.h5: "),
    ],
    ids=["unknown", "missing", "of the run", "own error", "kind", "value", "no block"],
)
def test_arguments_that_do_not_fit_are_refused_in_one_line(where, block, runtime, line):
    assert refused(where, block, **runtime).startswith(f"error[{line}")


def test_a_part_for_which_there_is_no_memory_is_not_blamed_on_its_arguments():
    block = {"_target_": "torch.nn.Linear", "in_features": 10**7, "out_features": 10**8}
    with pytest.raises(ResourceError, match="R104"):
        build("model", block, ())


def test_a_wrong_value_in_a_nested_block_is_one_line():
    inner = {"_target_": "torch.nn.Linear", "in_features": "two", "out_features": 3}
    line = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert line.startswith("error[C113]: model = torch.nn.Sequential: ")
    assert "\n" not in line


# --------------------------------------------------------------------------------- what is called


@pytest.mark.parametrize(
    "alias",
    [
        "framework.store.folder_store.Path",
        "framework.train.checkpoint.torch.load",
        "framework.model.digits_net.Tensor",
        "torch.nn.modules.module.functools.partial",
    ],
)
def test_a_foreign_function_under_a_name_of_ours_is_refused_and_not_called(alias):
    line = refused("model", {"_target_": alias, "_args_": ["touch canary"]})
    assert line.startswith(f"error[C105]: model._target_ = {alias}: ")
    assert not Path("canary").exists()


def test_a_forbidden_target_inside_a_block_is_refused_before_anything_is_made():
    inner = {"_target_": "os.mkdir", "path": "canary"}
    line = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert line.startswith("error[C105]: model._args_.0._target_ = os.mkdir")
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lent.NoSuch", "cannot be found"),
        ("lent.WIDTH", "is really"),  # cannot be called
        ("lent.os.mkdir", "is really posix.mkdir"),
    ],
)
def test_a_name_in_a_package_of_the_user_that_is_not_its_own_is_refused(
    name, text, monkeypatch, tmp_path
):
    (tmp_path / "lent.py").write_text("import os\nWIDTH = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = refused("model", {"_target_": name, "_args_": ["canary"]}, ("lent.",))
    assert line.startswith(f"error[C105]: model._target_ = {name}: {text}")
    assert not Path("canary").exists()


def test_what_is_left_of_a_reference_stays_text():
    text = "${oc.create:{_target_: os.mkdir, path: canary}}"
    block = {"_target_": "torch.nn.Sequential", "_args_": [text]}
    assert "str is not a Module" in refused("model", block)
    assert not Path("canary").exists()


# ---------------------------------------------------------------------------------------- schedules

TORCH = "torch.optim.lr_scheduler"
STEP = {"_target_": f"{TORCH}.StepLR", "step_size": 2, "gamma": 0.5}
WARM = {"warmup_steps": 0, "warmup_epochs": 2, "final": 0.0}


def schedule_of(block, warmup_steps=None):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    return build_schedule(block, (), optimizer, warmup_steps)


def rates(block, count=5):
    setter = schedule_of(block)[1]
    result = []
    for step in range(count):
        setter.move_to(step)
        result.append(setter.rates[0])
    return result


def test_a_schedule_of_ours_gets_its_warm_up_in_steps():
    schedule, setter = schedule_of({**COSINE, **WARM}, 24.0)
    assert schedule == Cosine(24, 0.0)
    assert setter is None


def test_a_scheduler_of_torch_sets_the_rates():
    assert rates(STEP) == [0.5, 0.5, 0.25, 0.25, 0.125]
    assert schedule_of({**STEP, "per": "epoch"})[1].per == "epoch"
    assert schedule_of(STEP)[1].per == "step"


def test_a_scheduler_of_torch_may_hold_others():
    parts = [
        {"_target_": f"{TORCH}.ConstantLR", "factor": 0.5, "total_iters": 9},
        {"_target_": f"{TORCH}.ExponentialLR", "gamma": 0.5},
    ]
    block = {"_target_": f"{TORCH}.SequentialLR", "schedulers": parts, "milestones": [2]}
    assert rates(block) == [0.25, 0.25, 0.5, 0.25, 0.125]


def test_a_scheduler_of_torch_is_known_by_its_optimizer():
    assert takes_optimizer(STEP)
    assert not takes_optimizer(COSINE)
    assert not takes_optimizer({"_target_": "unknown.Thing"})


@pytest.mark.parametrize(("changes", "words"), [({"gama": 2}, "C106"), ({"per": "batch"}, "C315")])
def test_a_scheduler_that_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        schedule_of({**STEP, **changes})


# ---- models of timm, torchvision and transformers


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
    assert targets.is_foreign(name)


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
    assert not targets.is_foreign(name)


def test_only_models_come_from_a_folder():
    assert targets.is_from_folder(AUTO)
    assert not targets.is_from_folder("transformers.AutoConfig.from_pretrained")
    assert not targets.is_from_folder("timm.create_model")


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
        targets.check_targets({"model": block}, ())
    targets.secured("model", block, ALLOWED)


def test_a_model_inside_another_block_is_checked_too():
    inner = {"_target_": "timm.create_model", "pretrained": True}
    with pytest.raises(ConfigError, match=r"C302\]: model.backbone.pretrained"):
        targets.check_targets({"model": {"_target_": "torch.nn.Sequential", "backbone": inner}}, ())


def test_a_name_on_the_hub_is_no_folder():
    block = {"_target_": AUTO, "pretrained_model_name_or_path": "google/vit"}
    with pytest.raises(ConfigError, match=r"C303\]: .*google/vit: is no folder.*hf download"):
        targets.check_targets({"model": block}, ALLOWED)


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
    return auto.declared_inputs({"model": FOLDER, "init": {"weights": None}})


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
    assert of_folder() == {"size": size, "resize": resize, "mean": [0.5], "std": [0.25]}


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
    assert auto.declared_inputs({"model": model, "init": {"weights": weights}}) == {}


@pytest.mark.parametrize(
    ("library", "block"),
    [("timm", TIMM), ("torchvision", {"_target_": "torchvision.models.resnet18"})],
)
def test_libraries_declare_the_inputs_of_pretrained_weights(library, block):
    imported(library)
    declared = auto.declared_inputs({"model": block, "init": {"weights": "x.pth"}})
    assert declared["size"] == [224, 224]
    assert declared["mean"] == pytest.approx([0.485, 0.456, 0.406])
    assert declared["std"] == pytest.approx([0.229, 0.224, 0.225])


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


class Compiles(nn.Module):
    def compile(self, **keywords):
        self.keywords = keywords


@pytest.mark.parametrize(
    ("chosen", "keywords"),
    [
        (True, {"dynamic": False}),
        ("max-autotune", {"dynamic": False, "mode": "max-autotune"}),
        ({"dynamic": None, "fullgraph": True}, {"dynamic": None, "fullgraph": True}),
    ],
    ids=["true", "mode", "block"],
)
def test_the_compiler_gets_a_mode_or_a_block(chosen, keywords):
    model = Compiles()
    compile_model(model, chosen)
    assert model.keywords == keywords


@pytest.mark.parametrize("options", [{"max_autotun": True}, {"max_autotune": 1}])
def test_an_option_that_the_compiler_does_not_take_is_refused(options):
    with pytest.raises(ConfigError, match=r"C387\]: compile = .*torch refuses it .*max_autotun"):
        compile_model(nn.Linear(1, 1), {"options": options})
