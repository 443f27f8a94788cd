import os
import pickle
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from framework.checkpoint import CheckpointFolder, load_state
from framework.errors import CheckpointError
from framework.model.digits import DigitsCNN
from tests.fakes import FakeLoader, make_data, make_model, make_trainer

NAMES = ("state.pt", "last.pt", "best.pt")


def trained(run_dir, **parts):
    """A run of two epochs that leaves its three files."""
    parts = {"ema": 0.9, "epochs": 2, "val": FakeLoader(make_data(6), 4), **parts}
    trainer = make_trainer(make_data(8), 4, checkpoints=CheckpointFolder(run_dir), **parts)
    trainer.fit()
    return trainer


def state_file(run_dir):
    path = run_dir / "checkpoints" / "state.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_checkpoint_is_code(name, tmp_path):
    trained(tmp_path)
    assert get_unsafe_globals_in_checkpoint(tmp_path / "checkpoints" / name) == []


@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_weights_are_a_plain_state_dict_for_the_plain_model(name, tmp_path):
    trained(tmp_path)
    weights = torch.load(tmp_path / "checkpoints" / name, weights_only=True)
    model = make_model()
    assert model.load_state_dict(weights).missing_keys == []
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_weights_of_a_model_with_batch_norm_load_into_the_plain_model(tmp_path):
    model = DigitsCNN(1, 10, 2)
    CheckpointFolder(tmp_path).save({}, model.state_dict(), best=False)
    weights = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert DigitsCNN(1, 10, 2).load_state_dict(weights, strict=True).unexpected_keys == []


def test_last_is_the_newest_and_best_stays_until_there_is_a_better_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save({}, {"w": torch.tensor(1)}, best=True)
    folder.save({}, {"w": torch.tensor(2)}, best=False)
    found = {name: int(torch.load(tmp_path / "checkpoints" / name, weights_only=True)["w"]) for name in NAMES[1:]}
    assert found == {"last.pt": 2, "best.pt": 1}


def test_the_state_comes_back_as_it_was_saved(tmp_path):
    trainer = trained(tmp_path)
    state = load_state(tmp_path)
    assert state["progress"] == {"step": 4, "epoch": 2, "epoch_step": 0, "scheduled": 4}
    assert (state["best"], state["val"]) == (trainer.best, trainer.val_means)
    assert torch.equal(state["rng"], torch.get_rng_state())
    assert all(torch.equal(state["model"][key], value) for key, value in trainer.model.state_dict().items())


def test_the_state_alone_is_enough_to_go_on(tmp_path):
    trained(tmp_path, epochs=1)
    for name in NAMES[1:]:
        (tmp_path / "checkpoints" / name).unlink()
    resumed = make_trainer(make_data(8), 4, ema=0.9, epochs=2)
    resumed.load_state_dict(load_state(tmp_path))
    resumed.fit()
    assert resumed.progress.step == 4


def test_a_run_without_a_state_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"^error\[K101\]: resume = .*: no checkpoints/state.pt there"):
        load_state(tmp_path)


def test_every_truncation_of_a_state_is_an_error_in_one_line(tmp_path):
    trained(tmp_path)
    path = state_file(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 50):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
            load_state(tmp_path)


GARBAGE = [
    b"",
    b"\0" * 100,
    b"garbage",
    b"\x80",
    b"\x80\x02}",
    b"\x80\x04\x95\xff",
    b"PK\x03\x04",
    b"(lp0\n",
    b"]q\x00.",
    random.Random(0).randbytes(500),
]
GARBAGE += [
    b"\x80\x02X\x04\x00\x00\x00\xff\xff\xff\xff.",
    b"\x80\x02K\x01.",
    b"0.",
    b"\x80\x02h\x05.",
    b"\x80\x02U\x01",
    b"c\n\n.",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_an_error_in_one_line(garbage, tmp_path):
    state_file(tmp_path).write_bytes(garbage)
    with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
        load_state(tmp_path)


def test_any_damage_to_a_state_s_structure_is_an_error_or_harmless(tmp_path):
    """A byte of the pickle inside is changed at a time; tensors' own bytes may change unseen, Python objects must not crash."""
    trained(tmp_path)
    path = state_file(tmp_path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))
    for position in range(0, len(members[pickled]), 7):
        damaged = bytearray(members[pickled])
        damaged[position] ^= 0x55
        _write_zip(path, {**members, pickled: bytes(damaged)})
        with suppress(CheckpointError):
            assert load_state(tmp_path) is not None


def _write_zip(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


class Malicious:
    """Unpickled by a careless reader, it leaves a file behind."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def _as_torch(path, value):
    torch.save(value, path)


def _as_old_torch(path, value):
    torch.save(value, path, _use_new_zipfile_serialization=False)


def _as_pickle(path, value):
    path.write_bytes(pickle.dumps(value, protocol=2))


WAYS = [_as_torch, _as_old_torch, _as_pickle]


@pytest.mark.parametrize("write", WAYS)
def test_a_malicious_state_is_refused_and_not_executed(write, tmp_path):
    canary = tmp_path / "canary"
    write(state_file(tmp_path), {"model": Malicious(canary)})
    with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
        load_state(tmp_path)
    assert not canary.exists()


def test_the_malicious_state_would_have_worked_on_a_careless_reader(tmp_path):
    canary = tmp_path / "canary"
    _as_torch(state_file(tmp_path), {"model": Malicious(canary)})
    torch.load(state_file(tmp_path), weights_only=False)
    assert Path(canary).exists()


def test_a_save_that_fails_leaves_the_old_state(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, {}, best=False)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        folder.save({"step": lambda: 2}, {}, best=False)
    assert load_state(tmp_path) == {"step": 1}
