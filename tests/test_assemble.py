import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.assemble import build, check_fit, prepare
from framework.data.hdf5 import HDF5Writer
from framework.data.lmdb import LMDBWriter
from framework.errors import ConfigError
from framework.model.digits import DigitsCNN
from framework.objective.classify import Classify
from framework.pack.digits import DigitsInput
from framework.pack.packing import Packing
from framework.pack.run import pack
from framework.schedule.cosine import Cosine
from tests.cli.command import is_one_error_line, losses, paceline

COSINE = {"_target_": "framework.schedule.cosine.Cosine", "warmup_steps": 3, "final": 0.5}
AMP = {"_target_": "framework.precision.amp.AMP", "dtype": "bf16"}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.5}
CPU = torch.device("cpu")


def refused(where, block, allowed=(), **runtime):
    """The ConfigError's line."""
    with pytest.raises(ConfigError) as caught:
        build(where, block, allowed, **runtime)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------------ build


def test_a_block_becomes_the_part_it_describes():
    schedule = build("schedule", COSINE, ())
    assert type(schedule) is Cosine
    assert (schedule.warmup_steps, schedule.final) == (3, 0.5)


def test_runtime_objects_arrive_untouched():
    parameters = [nn.Parameter(torch.ones(2))]
    optimizer = build("optim", SGD, (), params=parameters)
    assert optimizer.param_groups[0]["params"][0] is parameters[0]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_lists_and_dictionaries_are_plain():
    block = {"_target_": "framework.augment.normalize.Normalize", "field": "image", "mean": [0.5], "std": [0.25]}
    normalize = build("augment", block, ())
    assert (type(normalize.mean), normalize.mean, normalize.std) == (list, [0.5], [0.25])


def test_nested_blocks_are_built_first():
    layers = [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}, {"_target_": "torch.nn.ReLU"}]
    model = build("model", {"_target_": "torch.nn.Sequential", "_args_": layers}, ())
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU]


def test_a_part_may_be_built_twice_from_one_block():
    assert build("schedule", COSINE, ()) is not build("schedule", COSINE, ())


def test_an_unknown_argument_is_named():
    text = refused("schedule", {**COSINE, "warmup": 1})
    assert text.startswith("error[C106]: schedule: Cosine: ")
    assert "unexpected keyword argument 'warmup'" in text


def test_a_missing_argument_is_named():
    text = refused("schedule", {"_target_": COSINE["_target_"], "final": 0.0})
    assert text.startswith("error[C106]: schedule: Cosine: missing a required argument: 'warmup_steps'")


def test_a_wrong_value_is_said_with_the_part_s_own_words():
    text = refused("optim", {**SGD, "lr": -1.0}, params=[nn.Parameter(torch.ones(1))])
    assert text == "error[C113]: optim = torch.optim.SGD: Invalid learning rate: -1.0; correct its arguments"


def test_a_wrong_value_in_a_nested_block_is_one_line():
    inner = {"_target_": "torch.nn.Linear", "in_features": "two", "out_features": 3}
    text = refused("model", {"_target_": "torch.nn.Sequential", "_args_": [inner]})
    assert text.startswith("error[C113]: model = torch.nn.Sequential: ")
    assert "\n" not in text


def test_a_part_s_own_error_comes_out_as_it_is():
    assert refused("precision", {**AMP, "dtype": "fp8"}, device=CPU).startswith("error[C110]: precision.dtype = fp8")


def test_a_runtime_object_may_not_be_configured_too():
    text = refused("precision", {**AMP, "device": "cuda:7"}, device=CPU)
    assert text.startswith("error[C106]: precision")
    assert "device" in text


FORBIDDEN = ("os.system", "builtins.eval", "subprocess.run", "sklearn.svm.SVC", "frameworks.Evil", "torch.hub.load", "")


@pytest.mark.parametrize("target", FORBIDDEN)
def test_what_is_not_on_the_list_is_refused(target):
    assert refused("model", {"_target_": target}).startswith(f"error[C105]: model._target_ = {target}")


ALIASES = ("framework.model.digits.Tensor", "framework.data.folder.Path", "torch.nn.modules.module.functools.partial")


@pytest.mark.parametrize("alias", ALIASES)
def test_a_foreign_function_under_a_name_of_ours_is_refused_and_not_called(alias):
    text = refused("model", {"_target_": alias, "_args_": ["touch canary"]})
    assert text.startswith(f"error[C105]: model._target_ = {alias}: is really ")
    assert not Path("canary").exists()


def test_a_forbidden_target_inside_a_block_is_refused_before_anything_is_made():
    block = {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "os.mkdir", "path": "canary"}]}
    assert refused("model", block).startswith("error[C105]: model._args_.0._target_ = os.mkdir")
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", ["framework.model.digits.NoSuch", "framework.model.nowhere.Net", "torch.nn.Linaer"])
def test_a_name_that_is_not_there_is_said(name):
    assert refused("model", {"_target_": name}).startswith(f"error[C105]: model._target_ = {name}: cannot be found")


def test_what_cannot_be_called_is_refused():
    assert refused("model", {"_target_": "framework.assemble.NUM_SAMPLES"}).startswith("error[C105]")


def test_a_package_the_user_allows_is_built(monkeypatch, tmp_path):
    (tmp_path / "mynets.py").write_text("class Net:\n    def __init__(self, width):\n        self.width = width\n")
    monkeypatch.syspath_prepend(tmp_path)
    block = {"_target_": "mynets.Net", "width": 5}
    assert refused("model", block).startswith("error[C105]")
    assert build("model", block, ("mynets.",)).width == 5


# -------------------------------------------------------------------------------------------------------------- check_fit

CONFIG = {"model": {"_target_": "framework.model.digits.DigitsCNN"}}


def batch(channels=1):
    return {"index": torch.arange(2), "image": torch.zeros(2, channels, 8, 8), "label": torch.tensor([0, 9])}


def test_a_model_that_fits_is_left_in_training_mode_and_unchanged():
    model = DigitsCNN(1, 10, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_fit(model, Classify("image", "label", 0.0), batch(), CONFIG)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


UNFIT = [
    (DigitsCNN(3, 10, 2), Classify("image", "label", 0.0)),  # channels
    (DigitsCNN(1, 3, 2), Classify("image", "label", 0.0)),  # classes
    (DigitsCNN(1, 10, 2), Classify("picture", "label", 0.0)),  # a field that is not there
    (DigitsCNN(1, 10, 2), Classify("label", "image", 0.0)),  # the wrong way round
]


@pytest.mark.parametrize(("model", "objective"), UNFIT)
def test_a_model_that_does_not_fit_the_data_is_told_with_the_data_s_shapes(model, objective):
    with pytest.raises(ConfigError, match=r"^error\[C118\]: model = framework.*: does not fit the data's") as caught:
        check_fit(model, objective, batch(), CONFIG)
    assert "image (1, 8, 8), label ()" in str(caught.value)
    assert "set the model's keys" in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------- prepare

DIGITS = {"_target_": "framework.pack.digits.DigitsInput"}


HDF5 = {"_target_": "framework.data.hdf5.HDF5Writer"}
LMDB = {"_target_": "framework.data.lmdb.LMDBWriter"}


def splits(tmp_path, writer=HDF5):
    paths = {split: str(tmp_path / f"{split}.store") for split in ("train", "val")}
    return {"data": {**paths, "writer": writer}, "prepare": {split: {"input": {**DIGITS, "split": split}} for split in paths}}


def packed(config):
    """What ``prepare`` asks to pack: (split, path)."""
    asked = []
    prepare(config, (), lambda source, options, make_writer, path, _: asked.append((source.split, path)))
    return asked


def test_everything_that_is_missing_is_packed(tmp_path):
    config = splits(tmp_path)
    assert packed(config) == [(split, config["data"][split]) for split in ("train", "val")]


@pytest.mark.parametrize(("block", "kind"), [(HDF5, HDF5Writer), (LMDB, LMDBWriter)])
def test_it_is_packed_by_the_writer_of_the_data_that_was_chosen(tmp_path, block, kind):
    made = []
    prepare(
        splits(tmp_path, block),
        (),
        lambda source, _, make, path, __: made.append(make(path, fields=source.manifest.fields, num_records=1)),
    )
    for writer in made:
        writer.abort()
    assert [type(writer) for writer in made] == [kind, kind]


def test_data_that_cannot_be_written_is_not_packed(tmp_path):
    assert packed(splits(tmp_path, writer=None)) == []


def test_what_is_there_is_left_alone(tmp_path):
    config = splits(tmp_path)
    Path(config["data"]["train"]).write_text("mine")
    assert [split for split, _ in packed(config)] == ["val"]
    assert Path(config["data"]["train"]).read_text() == "mine"


@pytest.mark.parametrize(
    "change", [{"prepare": None}, {"data": {"train": None, "val": None, "writer": HDF5}}, {"prepare": {"train": None}}]
)
def test_nothing_is_packed_where_nothing_is_described(tmp_path, change):
    assert packed({**splits(tmp_path), **change}) == []


def test_what_is_packed_can_be_read(tmp_path):
    config = splits(tmp_path)
    config["prepare"].pop("train")
    made = []
    prepare(config, (), lambda source, _, make, path, __: made.append(pack(Packing(source, make, path)).manifest))
    assert made[0].num_records == len(DigitsInput("val").arrays[1])
    assert Path(config["data"]["val"]).exists()


def test_what_prepares_data_is_checked_like_every_part(tmp_path):
    config = splits(tmp_path)
    config["prepare"]["train"] = {"input": {"_target_": "os.mkdir", "path": "canary"}}
    with pytest.raises(ConfigError, match=r"^error\[C105\]: prepare.train.input._target_ = os.mkdir"):
        packed(config)


def test_what_prepares_data_has_an_input_and_says_how_it_is_packed(tmp_path):
    config = splits(tmp_path)
    config["prepare"]["train"] = {**DIGITS, "split": "train"}
    with pytest.raises(ConfigError, match=r"^error\[C153\]: prepare.train = .*give \{input:"):
        packed(config)


# ---------------------------------------------------------------------------------------------------------- the model's keys

SYNTHETIC = ["data=synthetic", "data.val=null", "epochs=1", "max_steps=2", "report_every=1", "workers.num=0"]


def test_a_pixel_s_channels_lie_together_where_that_was_asked_for():
    from framework.cli.allowed import Grant
    from framework.cli.variant import composed
    from framework.probe import Probe

    config, allowed = composed([*SYNTHETIC, "channels_last=true"], Grant(typed=False, exported=""))
    probe = Probe(config, allowed)
    try:
        model = probe.assembly.trainer(None, None, lambda: False).model
    finally:
        probe.close()
    convs = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert convs
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convs)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_a_compiled_model_learns_the_same_and_is_saved_under_the_same_names():
    assert paceline("train", *SYNTHETIC, "hydra.run.dir=plain").code == 0
    done = paceline(
        "train", *SYNTHETIC, "compile=true", "hydra.run.dir=compiled", TORCHINDUCTOR_CACHE_DIR=str(Path("cache").absolute())
    )
    assert done.code == 0, done.err
    assert losses(Path("compiled")) == pytest.approx(losses(Path("plain")), rel=1e-4)
    names = [list(torch.load(f"{run}/checkpoints/last.pt", weights_only=True)) for run in ("plain", "compiled")]
    assert names[0] == names[1]
    assert any(Path("cache").rglob("*.cpp"))  # it was compiled


def test_where_there_is_no_compiler_one_line_says_so():
    done = paceline("train", *SYNTHETIC, "compile=true", CXX="", PATH=str(Path("empty").absolute()))
    assert done.code == 5
    assert is_one_error_line(done, "R105")
