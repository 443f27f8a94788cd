import errno
import os
import pickle
import random
import zipfile
from pathlib import Path
from zlib import crc32

import pytest
import torch
from paceline_examples.digits_net import DigitsCNN
from torch.serialization import get_unsafe_globals_in_checkpoint

import framework.system.durable
import framework.train.checkpoint
from framework.config.resume import check_form
from framework.errors import CheckpointError, ResourceError
from framework.train.checkpoint import (
    _END,
    _MAGIC,
    END_BYTES,
    VERSION,
    CheckpointFolder,
    Damaged,
    newest_path,
    newest_state,
    read_stamp,
    read_state,
    save_state,
)
from tests.fakes import FakeLoader, make_data, make_model, make_trainer

# A state of the present format, saved after two of four steps. Later revisions must read it, or
# count ``VERSION`` up and save another.
GOLDEN = Path(__file__).parents[1] / "golden" / f"state-v{VERSION}.pt"


def folder_of(run_dir, keep=2, every_s=None, said=None):
    return CheckpointFolder(
        run_dir, {"learned": {}}, keep, every_s, [].append if said is None else said.append
    )


def trained(run_dir, keep=2, **parts):
    """Train for two epochs of two steps, and return the Trainer."""
    parts = {"ema": 0.9, "epochs": 2, "val": FakeLoader(make_data(6), 4), **parts}
    trainer = make_trainer(make_data(8), 4, checkpoints=folder_of(run_dir, keep), **parts)
    trainer.fit()
    return trainer


def save(folder, step, value=None, final=False):
    folder.save(step, {"value": step if value is None else value}, None, best=False, final=final)


def states(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))


def state_file(run_dir, step=1):
    path = run_dir / "checkpoints" / f"step-{step:08}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# ------------------------------------------------------------------------------------ what is saved


def test_a_run_leaves_its_newest_states_and_weights_to_use(tmp_path):
    trained(tmp_path)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        "best.pt",
        "last.pt",
        "step-00000002.pt",
        "step-00000004.pt",
    ]


@pytest.mark.parametrize("name", ["last.pt", "best.pt", "step-00000004.pt"])
def test_nothing_in_a_checkpoint_is_code(name, tmp_path):
    trained(tmp_path)
    assert get_unsafe_globals_in_checkpoint(tmp_path / "checkpoints" / name) == []


@pytest.mark.parametrize("options", [{}, {"mmap": True}])
def test_anyone_may_read_a_state(tmp_path, options):
    trained(tmp_path)
    path = newest_path(tmp_path)
    assert torch.load(path, weights_only=True, **options)["progress"]["step"] == 4
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None


@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_weights_are_a_plain_state_dict_for_the_plain_model(name, tmp_path):
    trained(tmp_path)
    weights = torch.load(tmp_path / "checkpoints" / name, weights_only=True)
    model = make_model()
    assert model.load_state_dict(weights).missing_keys == []
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


def test_weights_of_a_model_with_batch_norm_load_into_the_plain_model(tmp_path):
    model = DigitsCNN(1, 10, 2)
    folder_of(tmp_path).save(1, {}, model.state_dict(), best=False, final=False)
    weights = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert DigitsCNN(1, 10, 2).load_state_dict(weights, strict=True).unexpected_keys == []


def test_last_is_the_newest_and_best_stays_until_there_is_a_better_one(tmp_path):
    folder = folder_of(tmp_path)
    folder.save(1, {}, {"w": torch.tensor(1)}, best=True, final=False)
    folder.save(2, {}, {"w": torch.tensor(2)}, best=False, final=False)
    folder.save(3, {}, None, best=False, final=False)
    values = {
        name: int(torch.load(tmp_path / "checkpoints" / name, weights_only=True)["w"])
        for name in ("last.pt", "best.pt")
    }
    assert values == {"last.pt": 2, "best.pt": 1}


def test_the_state_comes_back_as_it_was_saved(tmp_path):
    trainer = trained(tmp_path)
    state = newest_state(tmp_path).state
    assert state["progress"] == {
        "step": 4,
        "epoch": 2,
        "epoch_step": 0,
        "scheduled": 4,
        "missed": 0,
    }
    assert (state["best"], state["val"], state["learned"]) == (trainer.best, trainer.val_means, {})
    assert all(
        torch.equal(state["model"][key], value)
        for key, value in trainer.parts.model.state_dict().items()
    )


def test_the_state_alone_is_enough_to_go_on(tmp_path):
    trained(tmp_path, epochs=1)
    for name in ("last.pt", "best.pt"):
        (tmp_path / "checkpoints" / name).unlink()
    resumed = make_trainer(make_data(8), 4, ema=0.9, epochs=2)
    resumed.load_state_dict(newest_state(tmp_path).state)
    resumed.fit()
    assert resumed.progress.step == 4


def test_a_state_that_another_revision_saved_is_continued():
    state = read_state(GOLDEN)
    check_form(state)
    resumed = make_trainer(make_data(8), 4, ema=0.9, epochs=2)
    resumed.load_state_dict(state)
    resumed.fit()
    assert (state["progress"]["step"], resumed.progress.step) == (2, 4)


# --------------------------------------------------------------------------------------- the newest


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_few_are_kept(tmp_path, keep):
    folder = folder_of(tmp_path, keep)
    for step in range(1, 5):
        save(folder, step)
    assert states(tmp_path) == [f"step-{step:08}.pt" for step in range(1, 5)][-keep:]


def test_an_older_one_is_removed_only_when_the_newer_one_has_its_name(tmp_path, monkeypatch):
    seen, folder = [], folder_of(tmp_path, keep=1)
    save(folder, 1)
    monkeypatch.setattr(
        framework.system.durable,
        "_reached",
        lambda point: seen.append((point, len(states(tmp_path)))),
    )
    save(folder, 2)
    assert dict(seen)["publish.published"] == 2
    assert seen[-1] == ("checkpoint.removed", 1)


def test_the_newest_is_the_one_saved_last_not_the_highest_step(tmp_path):
    save(folder_of(tmp_path), 100)
    save(folder_of(tmp_path), 40)  # another run that went on from step 30
    assert newest_path(tmp_path) == state_file(tmp_path, 40)
    assert newest_state(tmp_path).state == {"value": 40, "learned": {}}
    save(folder_of(tmp_path), 50)
    assert states(tmp_path) == ["step-00000040.pt", "step-00000050.pt"]


def test_clocks_do_not_matter(tmp_path):
    folder = folder_of(tmp_path)
    for step in (1, 2):
        save(folder, step)
    os.utime(state_file(tmp_path, 1))
    os.utime(state_file(tmp_path, 2), (0, 0))
    assert newest_path(tmp_path) == state_file(tmp_path, 2)


def test_damaged_states_are_reported_and_the_newest_whole_one_is_taken(tmp_path):
    folder = folder_of(tmp_path, keep=3)
    for step in (1, 2, 3):
        save(folder, step)
    flip(state_file(tmp_path, 3), 100)
    state_file(tmp_path, 2).write_bytes(b"")
    newest = newest_state(tmp_path)
    assert (newest.path, newest.state["value"]) == (state_file(tmp_path, 1), 1)
    # a state without a stamp counts as the oldest
    assert newest.damaged == ("step-00000003.pt (its checksum differs)",)


def test_if_none_is_whole_all_are_named(tmp_path):
    for step in (1, 2):
        state_file(tmp_path, step).write_bytes(b"x" * step)
    with pytest.raises(
        CheckpointError,
        match=r"^error\[K102\]: resume = .*step-00000002.pt \(only 2 bytes.*"
        r"step-00000001.pt \(only 1.*init=.*last.pt",
    ):
        newest_state(tmp_path)


def test_a_run_without_a_state_says_so(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"^error\[K101\]: resume = .*: no checkpoints/step-\*\.pt there"
    ):
        newest_state(tmp_path)
    assert newest_path(tmp_path) is None


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = state_file(tmp_path).with_name(f"step-00000001.pt.tmp.{os.uname().nodename}.999999.ab")
    left.write_bytes(b"half")
    folder_of(tmp_path)
    assert not left.exists()


# ------------------------------------------------------------------------------------------- damage


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture
def whole(tmp_path):
    """Save a small state, and return its path and its bytes."""
    save_state(
        state_file(tmp_path), {"model": {"w": torch.arange(100.0)}, "progress": {"step": 1}}, 1, 1
    )
    return state_file(tmp_path), state_file(tmp_path).read_bytes()


def test_every_truncation_is_reported(whole):
    path, data = whole
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged, match=r"^[^\n]*$"):
            read_state(path)


def test_every_flipped_byte_is_reported(whole):
    path, data = whole
    for position in [*range(0, len(data), 5), *range(len(data) - END_BYTES, len(data))]:
        flip(path, position)
        with pytest.raises(Damaged):
            read_state(path)
        path.write_bytes(data)


def test_what_is_damaged_is_not_unpickled(whole, monkeypatch):
    flip(whole[0], 200)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(Damaged, match="its checksum differs"):
        read_state(whole[0])


def test_a_later_version_is_reported(whole, monkeypatch):
    monkeypatch.setattr("framework.train.checkpoint.VERSION", VERSION + 1)
    what = f"written in version {VERSION}, this paceline reads {VERSION + 1}"
    with pytest.raises(Damaged, match=what):
        read_state(whole[0])


def test_the_end_says_which_save_it_was(whole):
    with open(whole[0], "rb") as file:
        stamp = read_stamp(file)
    assert (stamp.step, stamp.sequence, stamp.length) == (1, 1, len(whole[1]) - END_BYTES)


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
def test_garbage_is_reported(garbage, tmp_path):
    state_file(tmp_path).write_bytes(garbage)
    with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
        newest_state(tmp_path)


# ------------------------------------------------------------------------------------------ hostile


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


def with_end(path):
    """Append an end with fitting checksums, as an attacker can: a checksum is no seal."""
    with open(path, "rb") as file:
        data = file.read()
    end = _END.pack(_MAGIC, 1, 1, 1, len(data), crc32(data))
    path.write_bytes(data + end + crc32(end).to_bytes(4, "little"))


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("end", [True, False])
def test_a_malicious_state_is_refused_and_not_executed(write, tmp_path, end):
    canary = tmp_path / "canary"
    write(state_file(tmp_path), {"model": Malicious(canary)})
    if end:
        with_end(state_file(tmp_path))
    with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
        newest_state(tmp_path)
    assert not canary.exists()


def test_the_malicious_state_would_have_worked_on_a_careless_reader(tmp_path):
    canary = tmp_path / "canary"
    _as_torch(state_file(tmp_path), {"model": Malicious(canary)})
    torch.load(state_file(tmp_path), weights_only=False)
    assert Path(canary).exists()


# ------------------------------------------------------------------------------------------ trouble


def test_a_save_that_fails_leaves_the_old_state(tmp_path):
    folder = folder_of(tmp_path)
    save(folder, 1)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        save(folder, 2, value=lambda: 2)
    assert newest_state(tmp_path).state["value"] == 1
    assert states(tmp_path) == ["step-00000001.pt"]


def full_disk(monkeypatch):
    """Let every later write of a state fail as on a full disk."""

    def reached(point):
        if point == "checkpoint.writing":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(framework.system.durable, "_reached", reached)


def test_a_full_disk_is_said_and_the_run_goes_on(tmp_path, monkeypatch):
    said = []
    folder = folder_of(tmp_path, said=said)
    save(folder, 1)
    full_disk(monkeypatch)
    save(folder, 2)
    assert len(said) == 1
    assert said[0].startswith(
        "warning: step 2 is not saved, the newest checkpoint stands; error[R101]: "
    )
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001.pt"]


class Projector:
    pass


def test_an_optimizer_whose_state_cannot_be_read_again_is_said_at_the_first_save(tmp_path):
    said = []
    folder = folder_of(tmp_path, said=said)
    state = {"optimizer": {"state": {0: {"Q": [torch.zeros(1)], "projector": Projector()}}}}
    folder.save(1, state, None, best=False, final=False)
    folder.save(2, state, None, best=False, final=False)
    what = "the optimizer's projector is Projector: this run cannot be resumed"
    fix = "choose an optimizer that keeps tensors and plain values"
    assert said == [f"warning: {what}; {fix}"]


class KeepsLists(torch.optim.SGD):
    """Keeps lists of tensors, as SOAP and PSGD do."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter].setdefault("Q", [torch.zeros(1), {"calls": 0}])
            kept[0] += parameter.grad.abs().sum()
            kept[1]["calls"] += 1
        return super().step(closure)


def test_lists_of_an_optimizer_come_back(tmp_path):
    def trainer():
        model = make_model()
        optimizer = KeepsLists(model.parameters(), lr=0.1)
        return make_trainer(
            make_data(8), 4, model=model, optimizer=optimizer, checkpoints=folder_of(tmp_path)
        )

    first, second = trainer(), trainer()
    first.fit()
    state = newest_state(tmp_path).state
    check_form(state)
    second.load_state_dict(state)
    kept = [list(trainer.stepper.optimizer.state.values()) for trainer in (first, second)]
    for old, new in zip(*kept, strict=True):
        assert torch.equal(old["Q"][0], new["Q"][0])
        assert old["Q"][1] == new["Q"][1] == {"calls": 2}


def test_weights_that_the_disk_has_refused_are_not_the_best(tmp_path, monkeypatch):
    said = []
    folder = folder_of(tmp_path, said=said)
    full_disk(monkeypatch)
    assert folder.save(2, {}, {"w": torch.zeros(1)}, best=True, final=False) == (None, False)
    assert "the newest checkpoint stands, and best.pt is not of this best validation; " in said[0]


def test_the_best_weights_count_as_saved_without_their_state(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    monkeypatch.setattr(framework.train.checkpoint, "save_state", refuse)
    assert folder.save(2, {}, {"w": torch.zeros(1)}, best=True, final=False) == (None, True)
    assert (tmp_path / "checkpoints" / "best.pt").exists()


def refuse(*_):
    raise ResourceError(101, "step-00000002.pt", "No space left on device", "free some")


def test_a_full_disk_at_the_last_save_is_an_error(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    full_disk(monkeypatch)
    with pytest.raises(ResourceError, match=r"R101\]: .*No space left"):
        save(folder, 1, final=True)
    assert states(tmp_path) == []


def test_it_is_time_for_a_save_after_so_many_seconds(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, every_s=10.0)
    assert not folder.is_late()
    monkeypatch.setattr("framework.train.checkpoint.time.monotonic", lambda: 1e9)
    assert folder.is_late()
    save(folder, 1)
    assert not folder.is_late()
    assert not folder_of(tmp_path, every_s=None).is_late()
