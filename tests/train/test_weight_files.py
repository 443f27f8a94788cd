"""Files of weights: what other programs save is read, and what is damaged or hostile is refused."""

import argparse
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.errors import CheckpointError
from framework.train.weights import read_weights
from tests.faults.hostile import CALLS, CANARY, evil_files
from tests.train.test_checkpoint import flip, trained

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
    trainer = trained(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    best = torch.load(checkpoints / "best.pt", weights_only=True)
    assert_same(read_weights(tmp_path), best)
    assert_same(read_weights(tmp_path, average=False), trainer.parts.model.state_dict())
    newest = checkpoints / "step-00000004.pt"
    assert_same(read_weights(newest), trainer.parts.average.state_dict())
    flip(newest, 300)
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
    flip(Path("x.pth"), data.index(torch.tensor([7.0]).numpy().tobytes() * 64))
    assert "the checksum of" in refused(111)


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_would_execute_something_is_refused(call):
    evil_files()
    saved({**PLAIN, "fc.weight": CALLS[call]()})
    assert "save it anew" in refused(111)
    assert not list(Path().glob(f"{CANARY}*"))
