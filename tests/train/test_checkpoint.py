"""States of a run: what is saved, which one is the newest, and what is refused."""

import _codecs
import errno
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from zlib import crc32

import pytest
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

import framework.system.durable
import framework.train.checkpoint
from framework.errors import CheckpointError, ResourceError
from framework.train import checkpoint
from framework.train.checkpoint import END_BYTES, VERSION, Damaged, newest_state, read_state
from tests.fakes import FakeLoader, make_data, make_trainer
from tests.faults.hostile import Reduced, zipped

# A state of the present format, saved after two of four steps. Later revisions must read it, or
# count ``VERSION`` up and save another.
GOLDEN = Path(__file__).parents[1] / "golden" / f"state-v{VERSION}.pt"


def folder_of(run_dir, keep=2, every_s=None, printed=None):
    say = [].append if printed is None else printed.append
    return checkpoint.CheckpointFolder(run_dir, {"learned": {}}, keep, every_s, say)


def trained(run_dir, **parts):
    """Train for two epochs of two steps, and return the Trainer."""
    parts = {"ema": 0.9, "epochs": 2, "val": FakeLoader(make_data(6), 4), **parts}
    trainer = make_trainer(make_data(8), 4, checkpoints=folder_of(run_dir), **parts)
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


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the directory of a run that has ended, and its Trainer."""
    run_dir = tmp_path_factory.mktemp("run")
    return run_dir, trained(run_dir)


def test_torch_and_zipfile_read_a_state_and_find_no_code_in_it(finished):
    path = checkpoint.newest_path(finished[0])
    assert torch.load(path, weights_only=True, mmap=True)["progress"]["step"] == 4
    assert get_unsafe_globals_in_checkpoint(path) == []
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None


def test_last_is_the_newest_and_best_stays_until_there_is_a_better_one(tmp_path):
    folder = folder_of(tmp_path)
    folder.save(1, {}, {"w": torch.tensor(1)}, best=True, final=False)
    folder.save(2, {}, {"w": torch.tensor(2)}, best=False, final=False)
    folder.save(3, {}, None, best=False, final=False)
    for name, step in (("last.pt", 2), ("best.pt", 1)):
        weights = torch.load(tmp_path / "checkpoints" / name, weights_only=True)
        assert int(weights["w"]) == step


def test_the_state_comes_back_as_it_was_saved(finished):
    run_dir, trainer = finished
    state = newest_state(run_dir).state
    progress = {"step": 4, "epoch": 2, "epoch_step": 0, "scheduled": 4, "missed": 0}
    assert state["progress"] == progress
    assert (state["best"], state["val"], state["learned"]) == (trainer.best, trainer.val_means, {})
    model = trainer.parts.model.state_dict()
    assert all(torch.equal(state["model"][key], value) for key, value in model.items())


def test_a_state_of_this_version_continues():
    state = read_state(GOLDEN)
    resumed = make_trainer(make_data(8), 4, ema=0.9, epochs=2)
    resumed.load_state_dict(state)
    resumed.fit()
    assert (state["progress"]["step"], resumed.progress.step) == (2, 4)


def test_an_optimizer_whose_state_cannot_be_read_again_is_said_at_the_first_save(tmp_path):
    printed = []
    folder = folder_of(tmp_path, printed=printed)
    state = {"state": {0: {"exp_avg": torch.zeros(1), "Q": [1, {"a": object}]}}}
    for step in (1, 2):
        folder.save(step, {"optimizer": state}, None, best=False, final=False)
    fix = "this run cannot be resumed; keep dense tensors and plain values there"
    assert printed == [f"warning: the optimizer's Q is a list that is not plain: {fix}"]


def test_an_older_state_is_removed_only_when_the_newer_one_has_its_name(tmp_path, monkeypatch):
    seen = []
    folder = folder_of(tmp_path, keep=1)
    save(folder, 1)
    reached = lambda point: seen.append((point, len(states(tmp_path))))  # noqa: E731
    monkeypatch.setattr(framework.system.durable, "_reached", reached)
    save(folder, 2)
    assert dict(seen)["publish.published"] == 2
    assert seen[-1] == ("checkpoint.removed", 1)


def test_the_newest_is_the_one_saved_last_not_the_highest_step_or_the_latest_time(tmp_path):
    save(folder_of(tmp_path), 100)
    save(folder_of(tmp_path), 40)  # of another run that has resumed from step 30
    os.utime(state_file(tmp_path, 40), (0, 0))
    assert checkpoint.newest_path(tmp_path) == state_file(tmp_path, 40)
    assert newest_state(tmp_path).state == {"value": 40, "learned": {}}
    save(folder_of(tmp_path), 50)
    assert states(tmp_path) == ["step-00000040.pt", "step-00000050.pt"]


def test_it_is_time_for_a_save_after_so_many_seconds(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, every_s=10.0)
    assert not folder.is_late()
    monkeypatch.setattr("framework.train.checkpoint.time.monotonic", lambda: 1e9)
    assert folder.is_late()
    save(folder, 1)
    assert not folder.is_late()
    assert not folder_of(tmp_path, every_s=None).is_late()


def test_damaged_states_are_reported_and_the_newest_whole_one_is_taken(tmp_path):
    folder = folder_of(tmp_path, keep=3)
    for step in (1, 2, 3):
        save(folder, step)
    flip(state_file(tmp_path, 3), 100)
    state_file(tmp_path, 2).write_bytes(b"")  # a state without a stamp counts as the oldest
    newest = newest_state(tmp_path)
    assert (newest.path, newest.state["value"]) == (state_file(tmp_path, 1), 1)
    assert newest.damaged == ("step-00000003.pt (its checksum differs)",)


def test_if_no_state_is_whole_all_are_named(tmp_path):
    for step in (1, 2):
        state_file(tmp_path, step).write_bytes(b"x" * step)
    what = r"step-00000002.pt \(only 2 bytes.*step-00000001.pt \(only 1.*init=.*last.pt"
    with pytest.raises(CheckpointError, match=rf"^error\[K102\]: resume = .*{what}"):
        newest_state(tmp_path)


@pytest.fixture
def whole(tmp_path):
    """Save a small state, and return its path and its bytes."""
    state = {"model": {"w": torch.arange(100.0)}, "progress": {"step": 1}}
    checkpoint.save_state(state_file(tmp_path), state, 1, 1)
    return state_file(tmp_path), state_file(tmp_path).read_bytes()


def test_every_truncation_and_flipped_byte_is_refused_before_anything_is_unpickled(
    whole, monkeypatch
):
    path, data = whole
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    for length in (0, 1, END_BYTES - 1, END_BYTES, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged, match=r"^[^\n]*$"):
            read_state(path)
    path.write_bytes(data)
    length = len(data) - END_BYTES
    for position in [0, 200, length // 2, length - 1, *range(length, len(data))]:
        flip(path, position)
        with pytest.raises(Damaged):
            read_state(path)
        path.write_bytes(data)


def test_a_state_of_another_version_is_refused(whole, monkeypatch):
    monkeypatch.setattr("framework.train.checkpoint.VERSION", VERSION + 1)
    what = f"written in version {VERSION}, this paceline reads {VERSION + 1}"
    with pytest.raises(Damaged, match=what):
        read_state(whole[0])


def with_end(data):
    """Append an end with fitting checksums, as an attacker can: a checksum is no seal."""
    end = checkpoint._END.pack(checkpoint._MAGIC, VERSION, 1, 1, len(data), crc32(data))
    return data + end + crc32(end).to_bytes(4, "little")


class Malicious:
    """Unpickled by a careless reader, it leaves a file behind."""

    def __reduce__(self):
        return os.mkdir, ("canary",)


def torch_file(**options):
    file = io.BytesIO()
    torch.save({"model": Malicious()}, file, **options)
    return file.getvalue()


FOREIGN = {
    "zeros": b"\0" * 100,
    "a cut zip": b"PK\x03\x04",
    "no UTF-8": b"\x80\x02X\x04\x00\x00\x00\xff\xff\xff\xff.",
    "a malicious pickle": pickle.dumps(Malicious(), protocol=2),
    "a malicious file of torch": torch_file(),
    "an old malicious file": torch_file(_use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("payload", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_state_is_refused_in_one_line_and_not_executed(payload, tmp_path):
    state_file(tmp_path).write_bytes(with_end(payload))
    with pytest.raises(CheckpointError, match=r"^error\[K102\]: [^\n]*$"):
        newest_state(tmp_path)
    assert not Path("canary").exists()
    if payload == FOREIGN["a malicious file of torch"]:  # a careless reader executes it
        torch.load(io.BytesIO(payload), weights_only=False)
        assert Path("canary").exists()


def full_disk(monkeypatch):
    """Let every later write of a state fail as on a full disk."""

    def reached(point):
        if point == "checkpoint.writing":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(framework.system.durable, "_reached", reached)


def test_a_full_disk_is_said_and_the_run_goes_on(tmp_path, monkeypatch):
    printed = []
    folder = folder_of(tmp_path, printed=printed)
    save(folder, 1)
    full_disk(monkeypatch)
    save(folder, 2)
    weights = {"w": torch.zeros(1)}
    assert folder.save(3, {}, weights, best=True, final=False) == (None, False)
    stands = "is not saved, the newest checkpoint stands"
    assert len(printed) == 2
    assert printed[0].startswith(f"warning: step 2 {stands}; error[R101]: ")
    assert f"3 {stands}, and best.pt is not of this best validation; " in printed[1]
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001.pt"]


def test_a_full_disk_at_the_last_save_is_an_error(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    full_disk(monkeypatch)
    with pytest.raises(ResourceError, match=r"R101\]: .*No space left"):
        save(folder, 1, final=True)
    assert states(tmp_path) == []


FLOATS = torch.zeros(1000)
TEXT = "x" * 10_000


def repeated(times, inner):
    """Return lists in lists, each of which holds the next one many times."""
    for _ in range(times):
        inner = [inner] * 10
    return inner


def holding_itself():
    value = []
    value.append(value)
    return value


def of_torch(value, **options):
    file = io.BytesIO()
    torch.save({"model": value}, file, **options)
    return file.getvalue()


def loaded(data):
    Path("x.pt").write_bytes(data)
    with open("x.pt", "rb") as file:
        return checkpoint.load_checked(file)


def refusal(data):
    with pytest.raises(Damaged) as raised:
        loaded(data)
    return str(raised.value)


LIES = {
    "a stride of 0": (lambda: torch.zeros(1).expand(1 << 40), "too few numbers"),
    "overlapping rows": (lambda: FLOATS.unfold(0, 500, 1), "too few numbers"),
    "many views": (lambda: [FLOATS[n:] for n in range(50)], "too often"),
    "sparse": (FLOATS.to_sparse, "more than plain weights"),
    "meta": (lambda: torch.empty(1 << 50, device="meta"), "more than plain weights"),
    "bytearray": (lambda: Reduced(bytearray, 1 << 40), "not plain weights"),
    "an empty tensor": (lambda: Reduced(torch.FloatTensor, 1 << 40), "not plain weights"),
    "a list many times": (lambda: repeated(9, []), "too often"),
    "copies of a text": (
        lambda: [Reduced(_codecs.encode, TEXT, "latin1") for _ in range(99)],
        "too often",
    ),
    "a list that holds itself": (holding_itself, "holds itself"),
    "a deep list": (lambda: json.loads("[" * 150 + "]" * 150), "100 deep"),
}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(("make", "what"), LIES.values(), ids=LIES)
def test_a_value_that_takes_more_than_its_file_is_refused(make, what, is_zip):
    assert what in refusal(of_torch(make(), _use_new_zipfile_serialization=is_zip))


def test_a_valid_stamp_skips_no_check():
    Path("x.pt").write_bytes(with_end(of_torch(torch.zeros(1).expand(1 << 40))))
    with pytest.raises(Damaged, match="too few numbers"):
        read_state(Path("x.pt"))


HONEST = {
    "tied weights": [FLOATS] * 100,
    "a dtype without storages": torch.ones(3).to(torch.uint16),
    "parts of a tensor": [*FLOATS.view(10, 100)],
    "transposed": torch.zeros(30, 20).T,
    "empty": torch.zeros(0, 5),
    "Python's values": [{1, 2}, 1j, b"x", torch.Size([3]), torch.float32, torch.device("cpu")],
    "shared": [(0.9, 0.999)] * 100,
    "a parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("value", HONEST.values(), ids=HONEST)
def test_honest_values_are_read(value):
    read = loaded(of_torch(value))["model"]
    assert str(read) == str(value)


def test_a_file_that_unpacks_to_more_than_it_is_long_is_refused():
    with zipfile.ZipFile("x.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(10_000_000))
    assert "compressed" in refusal(Path("x.pth").read_bytes())


def test_members_that_overlap_are_refused():
    data = bytearray(zipped(("x/data.pkl", b"x" * 100)))
    start = data.index(b"PK\x01\x02")
    for place in (start + 20, start + 24):  # both sizes in the directory of the archive
        data[place : place + 4] = (1 << 30).to_bytes(4, "little")
    assert "more bytes than it has" in refusal(data)


def test_names_that_torch_takes_for_one_are_refused():
    assert "one name" in refusal(zipped(("x/data.pkl", b"N."), ("x/DATA.pkl", b"N.")))


def test_a_directory_that_torch_reads_elsewhere_is_refused():
    inner, outer = (bytearray(zipped(("x/data.pkl", text))) for text in (b"N.", b"I1\n."))
    struct.pack_into("<L", outer, len(outer) - 6, 7)
    assert "two directories" in refusal(inner + outer)


def test_more_numbers_than_a_part_has_are_refused():
    data = of_torch(torch.zeros(7))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    parts = [(name, part.replace(b"K\x07", b"M\x07\x07")) for name, part in parts]
    assert "not plain weights" in refusal(zipped(*parts))


STRANGE = {
    "sparse": torch.ones(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "a class of its own": torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_a_tensor_that_could_not_be_checked_is_not_plain(value):
    assert not checkpoint.is_plain([value])
    assert "the model's weight is " in checkpoint.foreign_value({}, {"weight": value})
