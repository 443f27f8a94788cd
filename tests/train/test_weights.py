"""First weights from files and records, and layers that are frozen and thaw."""

import argparse
import copy
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.errors import CheckpointError, ConfigError
from framework.measure.clock import NoClock
from framework.objective.classify import Classify
from framework.train.parameter_groups import thaws_of
from framework.train.weights import CHUNK, Freeze, freeze_layers, read_weights, start_from_data
from tests.fakes import FakeCheckpoints, make_data, make_trainer
from tests.faults.hostile import CALLS, CANARY, evil_files
from tests.train import states, test_checkpoint, test_cuda_graph

PLAIN = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
AVERAGED = {name: value + 1 for name, value in PLAIN.items()}


def with_prefix(prefix, weights=PLAIN):
    return {prefix + name: value for name, value in weights.items()}


def saved(value, name="x.pth", **options):
    torch.save(value, name, **options)
    return name


def assert_same(weights, wanted):
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def refused(number, path="x.pth"):
    """Read a file, which must be refused in one line, and return the line."""
    with pytest.raises(CheckpointError, match=rf"^error\[K{number}\]: {path}[^\n]*$") as raised:
        read_weights(path)
    return str(raised.value)


WRAPPED = {
    "bare": PLAIN,
    "ordered": OrderedDict(PLAIN),
    "a checkpoint": {"epoch": 3, "state_dict": PLAIN, "optimizer": {"state": {}}},
    "model_state_dict": {"model_state_dict": PLAIN, "best": 0.5},
    "DeepSpeed": {"module": PLAIN},
    "two dicts": {"model": {"state_dict": PLAIN}},
    "DDP": with_prefix("module."),
    "compiled parts": with_prefix(
        "module.", {n.replace(".", "._orig_mod."): w for n, w in PLAIN.items()}
    ),
    "compiled in DDP": {"state_dict": with_prefix("module._orig_mod.")},
    "Lightning": {"pytorch-lightning_version": "2.5", "state_dict": with_prefix("model.")},
    "a script's arguments": {"model": PLAIN, "args": argparse.Namespace(lr=0.1)},
    "parameters": {name: nn.Parameter(value) for name, value in PLAIN.items()},
    "without an average": {"model": PLAIN, "average": None},
}


@pytest.mark.parametrize("value", WRAPPED.values(), ids=WRAPPED)
def test_weights_are_read_however_a_program_wraps_them(value):
    assert_same(read_weights(saved(value)), PLAIN)


def test_a_file_of_torch_before_1_6_is_read():
    assert_same(read_weights(saved(PLAIN, _use_new_zipfile_serialization=False)), PLAIN)


def test_safetensors_are_read_whatever_the_file_is_called():
    safetensors = pytest.importorskip("safetensors.torch", reason="needs the extra safetensors")
    safetensors.save_file(PLAIN, "x.bin")
    assert_same(read_weights("x.bin"), PLAIN)


AVERAGES = {
    "timm": {"state_dict": PLAIN, "state_dict_ema": AVERAGED},
    "torchvision": {
        "model": PLAIN,
        "model_ema": {"n_averaged": torch.tensor(3), **with_prefix("module.", AVERAGED)},
    },
    "nested": {"model": PLAIN, "ema": {"module": AVERAGED}},
}


@pytest.mark.parametrize("value", AVERAGES.values(), ids=AVERAGES)
def test_averaged_weights_are_chosen_unless_plain_ones_are_wanted(value):
    path = saved(value)
    assert_same(read_weights(path), AVERAGED)
    assert_same(read_weights(path, average=False), PLAIN)


def test_a_run_gives_its_best_weights_and_without_the_average_its_newest_state(tmp_path):
    trainer = test_checkpoint.trained(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    best = torch.load(checkpoints / "best.pt", weights_only=True)
    assert_same(read_weights(tmp_path), best)
    assert_same(read_weights(tmp_path, average=False), trainer.parts.model.state_dict())
    newest = checkpoints / "step-00000004.pt"
    assert_same(read_weights(newest), trainer.parts.average.state_dict())
    test_checkpoint.flip(newest, 300)
    assert "its checksum differs" in refused(111, str(newest))


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("y.pth", r"y.pth: is not there; did you mean 'x.pth'\?"),
        ("nowhere/x.pth", "nowhere/x.pth: is not there; give the path"),
        ("empty", "empty: no best.pt, .* in this folder"),
        ("/dev/zero", "/dev/zero: is no regular file"),
    ],
)
def test_a_missing_file_is_reported(path, what):
    saved(PLAIN)
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match=rf"^error\[K110\]: {what}"):
        read_weights(path)


@pytest.mark.parametrize(
    "value",
    [{}, {"epoch": 3}, {"state_dict": {}}, [PLAIN], 5],
    ids=["nothing", "no tensor", "an empty dict", "a list", "a number"],
)
def test_a_file_without_weights_says_what_it_has(value):
    saved(value)
    refused(112)


@pytest.mark.parametrize("zipped_file", [True, False])
def test_truncations_are_refused(zipped_file):
    data = Path(saved(PLAIN, _use_new_zipfile_serialization=zipped_file)).read_bytes()
    for length in (0, 1, 9, len(data) // 2, len(data) - 1):
        Path("x.pth").write_bytes(data[:length])
        refused(111)


def test_a_flipped_bit_of_a_number_is_refused():
    data = Path(saved({"w": torch.full((64,), 7.0)})).read_bytes()
    test_checkpoint.flip(Path("x.pth"), data.index(torch.tensor([7.0]).numpy().tobytes() * 64))
    assert "the checksum of" in refused(111)


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_would_execute_something_is_refused(call):
    evil_files()
    saved({**PLAIN, "fc.weight": CALLS[call]()})
    assert "save its state_dict anew" in refused(111)
    assert not list(Path().glob(f"{CANARY}*"))


IMAGES = torch.randn(CHUNK + 30, 4, generator=torch.Generator().manual_seed(0))


class Center(nn.Module):
    """Subtracts the mean of what it gets."""

    def __init__(self, count):
        super().__init__()
        self.num_start_records = count
        self.register_buffer("mean", torch.zeros(4))
        self.chunks = []

    def start_from(self, inputs):
        given = list(inputs)
        self.chunks = [len(chunk) for chunk in given]
        self.mean.copy_(torch.cat(given).mean(0))

    def forward(self, x):
        return x - self.mean


def sample(count):
    return {"index": torch.arange(count), "x": IMAGES[:count], "label": torch.zeros(count).long()}


def start(model):
    def finish(batch):
        return {**batch, "x": batch["x"] + 1}

    start_from_data(model, Classify("x", "label", 0.0), sample, finish)


def test_modules_get_in_turn_what_reaches_them_in_chunks():
    model = nn.Sequential(Center(10), nn.Dropout(0.5), Center(len(IMAGES)))
    start(model)
    centered = IMAGES + 1 - (IMAGES[:10] + 1).mean(0)
    torch.testing.assert_close(model[2].mean, centered.mean(0))
    assert model[2].chunks == [CHUNK, 30]


def test_nothing_else_of_the_model_changes_or_runs():
    def never(module, inputs):
        raise AssertionError

    model = nn.Sequential(nn.BatchNorm1d(4), Center(10), nn.Linear(4, 4))
    model[2].register_forward_pre_hook(never)
    start(model)
    assert model.training
    assert int(model[0].num_batches_tracked) == 0
    assert not model[1]._forward_pre_hooks


FREEZE = {"stem": 5, "body": None}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU())
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def frozen(model, freeze=FREEZE, rewrap=lambda wrapped: wrapped):
    return Freeze(model, freeze_layers(model, freeze), thaws_of(freeze), rewrap)


def make(freeze=FREEZE, **parts):
    """Return a Trainer over epochs of four whole batches and a short one, with weight decay."""
    model = Net()
    layers = frozen(model, freeze)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, weight_decay=0.5, fused=True)
    parts = {"freeze": layers, "optimizer": optimizer, "clock": NoClock(), "epochs": 3, **parts}
    return make_trainer(make_data(18, torch.float32), 4, model=model, **parts)


def fitted(*arguments, **parts):
    own = make(*arguments, **parts)
    torch.manual_seed(1)
    own.fit()
    return own


def moved(own):
    """Return the names of the weights and buffers that differ from those of a new model."""
    before = Net().state_dict()
    after = own.stepper.model.state_dict()
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_frozen_layers_keep_their_bits_and_the_head_learns_its_statistics():
    own = fitted(["stem", "body"])
    names = moved(own)
    assert "head.0.running_mean" in names
    assert all(name.startswith("head") for name in names)
    assert not any(parameter.requires_grad for parameter in own.stepper.model.stem.parameters())


@pytest.mark.parametrize("recorder", [None, test_cuda_graph.Again])
def test_a_layer_thaws_at_its_step(recorder):
    names = moved(fitted(recorder=recorder and recorder(), max_steps=5))
    assert all(name.startswith("head") for name in names)
    names = moved(fitted(recorder=recorder and recorder(), max_steps=6))
    assert {"stem.0.weight", "stem.1.running_mean"} <= names
    assert not any(name.startswith("body") for name in names)


@pytest.mark.parametrize("recorder", [None, test_cuda_graph.Again])
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_run_that_resumes_around_the_thaw_learns_the_same_bits(step, recorder):
    saved = FakeCheckpoints()
    whole = fitted(checkpoints=saved, save_every=1, ema=0.9)
    again = make(recorder=recorder and recorder(), ema=0.9)
    again.load_state_dict(copy.deepcopy(states.saved_at(saved, step)))
    again.fit()
    assert states.same(again.stepper.model.state_dict(), whole.stepper.model.state_dict())
    assert states.same(states.average(again), states.average(whole))


@pytest.mark.parametrize(
    ("patterns", "is_held"),
    [(["*.bias"], False), (["stem.1"], True), (["*.bias", "*.weight"], True)],
)
def test_a_batch_norm_is_held_if_all_of_it_is_frozen(patterns, is_held):
    model = Net()
    model.head[2].extra = nn.Parameter(torch.zeros(1))
    layers = frozen(model, patterns)
    model.train()
    layers.hold()
    assert model.stem[1].training is not is_held


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        (["stme"], "freeze = stme: matches no parameter of the model; the model has stem, body, h"),
        (["stem", "stem.0"], r"freeze = stem.0: matches stem.0.weight, which another entry has"),
        (["*"], "leaves nothing to train"),
    ],
)
def test_layers_that_cannot_be_frozen_are_refused(freeze, words):
    with pytest.raises(ConfigError, match=f"C312.*{words}"):
        freeze_layers(Net(), freeze)
