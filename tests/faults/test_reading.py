"""Faults while reading, R1 to R14 of docs/faults.md (which names others), by the real command."""

import os
import shutil
import signal
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from framework.contracts.records import SCHEMA, Field
from framework.store import hdf5_store, lmdb_store
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.conftest import edited_manifest, make_records, write_store
from tests.faults import forked

PATHS = ["x.h5", "x.lmdb"]
WIDE = {"image": Field("uint8", (1, 8, 8)), "label": Field("int64", ())}
WIDE |= {"rest": Field("uint8", (16_384,))}


def digits(path, count=256, fields=None):
    """Write a store for the smallest model; ``WIDE`` adds a field of 4 MB that none needs."""
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (count, 1, 8, 8), np.uint8)
    label = np.arange(count, dtype=np.int64) % 3
    records = {"image": image, "label": label, "rest": np.ones((count, 16_384), np.uint8)}
    fields = fields or {name: WIDE[name] for name in ("image", "label")}
    return write_store(path, {name: records[name] for name in fields}, fields)


def train(path, *words):
    """Return the command that trains on the store, without end unless ``words`` limit it."""
    data = "lmdb" if path.endswith(".lmdb") else "hdf5"
    more = [
        *("data.val=null", "prepare=null", "batch_size=128", "device=cpu", "sink=[jsonl]"),
        "report_every=1",
    ]
    return [
        *("train", f"data={data}", f"data.train={path}", *more),
        *(*([] if "epochs=1" in words else ["epochs=100000"]), *words),
    ]


def training():
    """Return whether a run has made a step."""
    return any(log.read_bytes() for log in Path("outputs").rglob("metrics.jsonl"))


def commands(path):
    """Return every command that reads a store."""
    return [train(path, "epochs=1"), ["inspect", path]]


# -------------------------------------------------------------- R1, R2, R3, R5: damaged and foreign


@pytest.mark.parametrize(("path", "size"), [("x.h5", 10_000), ("x.lmdb", 100)])
def test_r1_r2_a_truncated_store_is_one_line_with_every_command(path, size):
    digits(path)
    os.truncate(path, size)
    for words in commands(path):
        assert forked.is_one_line(paceline(*words), "D102", 3, path)
    done = paceline("verify", path)
    assert forked.is_one_line(done, "D156", 3)
    assert f"error[D102]: {path}" in done.out


def flipped(path, place):
    data = bytearray(Path(path).read_bytes())
    data[place] ^= 1
    Path(path).write_bytes(data)


def in_a_record(path):
    """Return a position inside a record's bytes."""
    record = bytes(open_store(path).read(torch.tensor([200]))["image"].numpy())
    return Path(path).read_bytes().find(record) + 10


@pytest.mark.parametrize("path", PATHS)
def test_r3_a_flipped_bit_is_found_in_the_first_epoch_and_by_verify(path):
    digits(path)
    flipped(path, in_a_record(path))
    assert forked.is_one_line(paceline(*train(path, "epochs=1")), "D119", 3, f"{path}: record 200")
    assert f"{path}: record 200 (record-200): does not match" in paceline("verify", path).out


@pytest.mark.parametrize("path", PATHS)
def test_r5_a_store_of_a_later_version_is_refused_before_anything_starts(path):
    digits(path)
    if path == "x.h5":
        with h5py.File(path, "r+") as file:
            file.attrs["manifest"] = edited_manifest(file.attrs["manifest"], schema=SCHEMA + 1)
    else:
        data = Path(path).read_bytes()
        mine, newer = (b'"schema": %d' % version for version in (SCHEMA, SCHEMA + 1))
        Path(path).write_bytes(data.replace(mine, newer))
    for words in commands(path):
        assert forked.is_one_line(paceline(*words), "D104", 3, path, f"schema {SCHEMA + 1}")


LIKE_LMDB = struct.pack("<16xI", 0xBEEFC0DE) + bytes(9000)


@pytest.mark.parametrize(
    "data", [pytest.param(b"hello", id="text"), pytest.param(LIKE_LMDB, id="head of LMDB")]
)
def test_r5_any_other_file_is_one_line(data):
    Path("x.h5").write_bytes(data)
    for words in commands("x.h5"):
        # data=hdf5 names the choice for what looks like an LMDB file
        number = "D103" if data == LIKE_LMDB and words[0] == "train" else "D102"
        assert forked.is_one_line(paceline(*words), number, 3, "x.h5")


# ---------------------------------------------------- R4, R9: a store that changes under a training


def truncated(path):
    os.truncate(path, 4096)


def rewritten(path):
    data = Path(path).read_bytes()
    with open(path, "r+b") as file:
        file.write(data)


@pytest.mark.parametrize(("change", "number"), [(rewritten, "D117"), (os.unlink, "D101")])
def test_r9_a_store_that_changes_ends_the_training_at_the_next_epoch(change, number):
    path = digits("x.h5")
    with forked.Command(*train(path)) as command:
        forked.wait_for(training, "a step")
        change(path)
        done = command.wait()
    assert forked.is_one_line(done, number, 3, path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("x.h5", "process"), pytest.param("x.lmdb", "thread", marks=pytest.mark.slow)],
)
def test_r4_a_store_truncated_inside_an_epoch_ends_the_training_at_once(path, kind):
    """A read of a map past the end of its file is SIGBUS.

    The training reports the death of a worker process. With threads, the training itself dies.
    """
    digits(path, 1024, WIDE)
    with forked.Command(
        *train(path, "batch_size=4", "verify=off", f"workers.kind={kind}", "workers.num=2")
    ) as command:
        forked.wait_for(training, "a step")
        truncated(path)
        done = command.wait()
    if done.code == -signal.SIGBUS:
        assert kind == "thread"
        return
    assert done.code in (3, 5), (done, [log.read_text() for log in Path().rglob("debug.log")])
    # D102 (HDF5) and D105 (LMDB): a worker process that opens the store only now
    named = ("error[R102]: ", "error[D117]: ", "error[D102]: ", "error[D105]: ")
    assert done.last_line.strip("\0").startswith(named)


# ------------------------------------------------------------------- R7, R10, R12: places and disks


def test_r7_a_folder_that_is_no_store_is_named():
    Path("folder").mkdir()
    assert forked.is_one_line(paceline(*train("folder")), "D103", 3, "folder")


@forked.needs_root
def test_r7_a_store_without_permission_is_named_as_that():
    path = "x.lmdb"
    digits(path)
    Path(path).chmod(0)
    done = forked.paceline("inspect", path, before=forked.no_privileges)
    assert done.code in (3, 5)
    number = "D101" if done.code == 3 else "R101"
    words = (path, "cannot be read", "Permission denied")
    assert forked.is_one_line(done, number, done.code, *words)


def test_a_pipe_is_not_opened():
    os.mkfifo("x.h5")
    assert paceline("inspect", "x.h5").code == 3


@forked.needs_root
def test_r10_a_store_on_a_disk_that_may_only_be_read_is_read():
    path = "x.lmdb"
    Path("disk").mkdir()
    digits(f"disk/{path}")
    for words in (["verify", f"disk/{path}"], train(f"disk/{path}", "epochs=1")):
        assert forked.paceline(*words, before=lambda: forked.read_only("disk")).code == 0


@forked.needs_strace
def test_r10_reading_needs_no_locks():
    path = "x.lmdb"
    digits(path)
    options = ("-e", "trace=flock", "-e", "inject=flock:error=ENOLCK")
    with forked.traced("verify", path, "workers=0", options=options) as command:
        assert command.wait().code == 0
    assert "F_SETLK" not in Path("trace.txt").read_text()


@forked.needs_strace
def test_r12_a_bad_disk_is_one_line():
    path = "x.h5"
    digits(path)
    calls = ("-P", os.path.abspath(path), "-e", "inject=read,pread64:error=EIO")
    with forked.traced("inspect", path, options=calls) as command:
        done = command.wait()
    assert done.code == 3, done
    assert forked.is_one_line(done, done.err[6:10], 3, path)


# ------------------------------------------------------------------------------- R11: few and many


def test_r11_a_store_without_records_is_refused():
    path = "x.h5"
    write_store(path, make_records(0))
    assert forked.is_one_line(paceline(*train(path)), "D109", 3)


def test_r11_a_single_record_trains():
    digits("x.h5", 1)
    assert paceline(*train("x.h5", "epochs=1")).code == 0


# --------------------------------------------------------------------------------- P24: large files


def test_p24_records_beyond_4_gib_are_read():
    """The file has a hole: of its HDF5 rows of 64 MiB, only the last is allocated."""
    rows, width = 80, 64 << 20
    fields = {"x": Field("uint8", (width,))}
    write_store("x.h5", {"x": np.zeros((1, width), np.uint8)}, fields)
    with h5py.File("x.h5", "r") as file:
        manifest, crc = file.attrs["manifest"], int(file["crc32"][0])
    with h5py.File("large.h5", "w") as file:
        file.create_group("records").create_dataset("x", (rows, width), "uint8")
        file["records/x"][rows - 1, :3] = [1, 2, 3]
        file["crc32"] = np.full(rows, crc, np.uint32)
        file.attrs["manifest"] = edited_manifest(manifest, num_records=rows)
    assert os.path.getsize("large.h5") > 1 << 32
    assert os.stat("large.h5").st_blocks * 512 < 1 << 30
    store = hdf5_store.HDF5Store("large.h5")
    records = store.read(torch.tensor([rows - 1]))
    assert records["x"][0, :4].tolist() == [1, 2, 3, 0]
    assert store.damaged(torch.tensor([rows - 1]), records) == [rows - 1]
    store.close()


def test_p24_values_beyond_4_gib_are_read():
    """The last record's pages lie behind a hole, beyond 4 GiB, and the tree points to them."""
    fields = {"x": Field("uint8", (100_000,))}
    values = np.random.default_rng(0).integers(0, 256, (3, 100_000), np.uint8)
    write_store("x.lmdb", {"x": values}, fields)
    data = bytearray(Path("x.lmdb").read_bytes())
    value = data.find(values[2].tobytes()) // 4096 * 4096
    # an overflow page begins with its number
    while struct.unpack_from("<Q", data, value)[0] != value // 4096:
        value -= 4096
    count, far = struct.unpack_from("<I", data, value + 12)[0], (5 << 30) // 4096
    moved = bytearray(data[value : value + count * 4096])
    struct.pack_into("<Q", moved, 0, far)
    data = data.replace(struct.pack("<Q", value // 4096), struct.pack("<Q", far))
    for meta in (0, 4096):
        struct.pack_into("<Q", data, meta + 16 + 120 - 16 + 16, far + count - 1)
    with open("x.lmdb", "wb") as file:
        file.write(data)
        file.seek(far * 4096)
        file.write(moved)
    store = lmdb_store.LMDBStore("x.lmdb")
    records = store.read(torch.tensor([2, 0]))
    assert np.array_equal(records["x"].numpy(), values[[2, 0]])
    assert store.damaged(torch.tensor([2, 0]), records) == []
    store.close()


# ----------------------------------------------------------------------- packing what is being read


def test_two_readers_of_one_store_do_not_disturb_each_other():
    path = digits("x.h5")
    with (
        forked.Command(*train(path, "epochs=1")) as trainer,
        forked.Command("verify", path) as verifier,
    ):
        assert (trainer.wait().code, verifier.wait().code) == (0, 0)
    shutil.rmtree("outputs")


# ----------------------------------------------------------------------------------------- nonsense


def test_any_name_of_a_store_is_taken_as_it_is():
    digits("some.h5")
    for name in ("a=b.h5", os.fsdecode(b"\xff.h5")):
        shutil.copy("some.h5", name)
        assert paceline("inspect", name).code == 0
