import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch

from framework.errors import ConfigError, DataError, ResourceError
from framework.input.arrays import ArraysInput
from framework.input.dataset import DatasetInput
from framework.input.function import FunctionInput
from framework.pack import jobs, marked, pack_store, verify_store
from framework.pack import packing as journal
from framework.pack.pack_store import list_bad, pack
from framework.pack.packing import BadItem
from framework.store.open_store import open_store
from framework.system import durable
from tests import conftest, forks
from tests.input.inputs import COUNT, Input, content, packing

PATHS = ("x.h5", "x.lmdb")
WAYS = [(path, one_file) for path in PATHS for one_file in (True, False)]


def labels(path):
    store = open_store(path)
    count = store.manifest.num_records
    result = (
        store.read(torch.arange(count))["label"].tolist(),
        [store.key(index) for index in range(count)],
    )
    store.close()
    return result


def stored(path, field):
    """Return the first value of a field in each record."""
    store = open_store(path)
    values = store.read(torch.arange(store.manifest.num_records))[field][:, 0].tolist()
    store.close()
    return values


def in_child(action, *arguments):
    """Call ``action`` in a forked process and return its exit code."""
    child = forks.forked(action, *arguments)
    child.join()
    return child.exitcode


@functools.cache
def straight(path, one_file=True):
    """Return the content of an undisturbed packing, made in another folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pack(packing(path, one_file=one_file))
        return content(path)


@pytest.mark.parametrize(("path", "one_file"), WAYS[1:3])
def test_the_number_of_processes_does_not_change_a_byte(path, one_file):
    contents = []
    for num_workers in (0, 1, 3):
        pack(packing(path, one_file=one_file), num_workers)
        contents.append(content(path))
        assert os.listdir() == [path]
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (None, "there is no field label"),
        (np.zeros((4, 2), np.int64), r"int64 \[2\]"),
        (np.zeros(4, np.float32), r"float32 \[\]"),
    ],
)
def test_classes_need_a_number_per_record(label, words):
    arrays = {"image": np.zeros((4, 3, 2, 2), np.uint8), "label": label}
    np.savez("a.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ConfigError, match=rf"C161.*input.classes = a, ...: .*{words}"):
        pack(packing(source=ArraysInput("a.npz", ["a", "b"])))
    assert os.listdir() == ["a.npz"]


@pytest.mark.parametrize(("kind", "shape"), [("ragged", (0,)), ("points", (0, 2))])
def test_rows_without_values_are_refused_before_a_store_is_replaced(kind, shape):
    conftest.write_store("x.h5", conftest.make_records(3))
    items = [{"x": np.zeros((count, *shape))} for count in (1, 2)]
    source = marked.MarkedInput(DatasetInput(items, None, None), None, None, kinds={"x": kind})
    with pytest.raises(DataError, match=r"D167.*dataset list: x: .*holds no value"):
        pack(packing(source=source))
    assert len(labels("x.h5")[0]) == 3


# -------------------------------------------------------------------------------------------- kills


def packed_until(path, one_file, module, name, number, source=None):
    """Pack until the process dies after, or if ``number`` < 0 before, that call of the name."""
    real, calls = getattr(module, name), []

    def deadly(*arguments, **keywords):
        calls.append(1)
        result = real(*arguments, **keywords) if number > 0 else None
        if len(calls) == abs(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return result if number > 0 else real(*arguments, **keywords)

    setattr(module, name, deadly)
    pack(packing(path, source, one_file=one_file), 0)


POINTS = {
    "after a job's file, before its note": (jobs, "file_sha256", 2),
    "before the first note": (journal, "write_bytes", -1),
    "after the third note": (journal, "write_bytes", 3),
    "before the finish": (durable, "move", -1),
    "after the store has its name": (durable, "move", 1),
    "in the middle of joining": (jobs, "keys_of", 2),
    "before the manifest of the folder": (pack_store, "to_json", 1),
}


@pytest.mark.parametrize(
    ("path", "one_file", "point"),
    [
        *((*WAYS[0], point) for point in POINTS if "folder" not in point),
        (*WAYS[1], "in the middle of joining"),
        (*WAYS[1], "before the manifest of the folder"),
        (*WAYS[2], "after the third note"),
    ],
)
def test_after_a_kill_the_same_call_makes_the_same_bytes(path, one_file, point):
    in_child(packed_until, path, one_file, *POINTS[point])
    pack(packing(path, one_file=one_file))
    assert content(path) == straight(path, one_file=one_file)
    assert os.listdir() == [path]


def test_finished_jobs_are_not_read_again():
    assert in_child(packed_until, "x.h5", True, journal, "write_bytes", 3) == -signal.SIGKILL
    source = Input()
    read, asked = source.read, []
    source.read = lambda start, stop: asked.append((start, stop)) or read(start, stop)
    packed = pack(packing(source=source))
    assert packed.resumed > 0
    assert min(start for start, _ in asked) == packed.resumed


def test_an_item_that_has_changed_since_is_read_again():
    class Files(Input):
        def item_files(self, index):
            return [f"files/{index % 7}"]

    Path("files").mkdir()
    for number in range(7):
        Path(f"files/{number}").write_text("old")
    source = Files()
    in_child(lambda: packed_until("x.h5", True, durable, "move", -1, source))
    assert Path("x.h5.parts").is_dir()
    Path("files/3").write_text("newer")
    assert pack(packing(source=source)).resumed == 0


def start_packing(path="x.h5", one_file=True):
    """Start to pack by two workers in a forked process, and return that process."""
    return forks.forked(lambda: pack(packing(path, one_file=one_file), 2))


def wait_for(path, count=1):
    end = time.monotonic() + 60
    while len(list(Path().glob(path))) < count:
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.002)


@pytest.mark.parametrize(("path", "one_file"), WAYS[1:3])
def test_a_packer_killed_with_its_workers_at_work_leaves_what_the_same_call_goes_on_from(
    path, one_file
):
    packer = start_packing(path, one_file)
    wait_for(f"{path}.parts/files/*")
    packer.kill()
    packer.join()
    pack(packing(path, one_file=one_file), 2)
    assert content(path) == straight(path, one_file=one_file)
    assert os.listdir() == [path]


# ----------------------------------------------------------------------------------- bad and deadly


@pytest.mark.parametrize(("path", "num_workers"), [("x.h5", 2), ("x.lmdb", 0)])
def test_a_bad_item_is_named_and_leaves_the_old_store(path, num_workers):
    conftest.write_store(path, conftest.make_records(3))
    with pytest.raises(DataError, match=r"D106.*item 700"):
        pack(packing(path, Input(bad=[700])), num_workers)
    assert len(labels(path)[0]) == 3
    assert sorted(os.listdir()) == [path, f"{path}.parts"]


@pytest.mark.parametrize("num_workers", [0, 3])
def test_bad_items_are_skipped_and_listed(num_workers):
    packed = pack(packing(source=Input(bad=[5, 3999]), on_error="skip"), num_workers)
    assert labels("x.h5")[1] == [f"k{n}" for n in range(COUNT) if n not in (5, 3999)]
    assert [bad.item for bad in packed.bad] == [5, 3999]
    assert Path("x.h5.bad.jsonl").read_text().splitlines()[0] == (
        '{"item": 5, "name": "item 5", "error": "D106", "reason": "not a readable image"}'
    )
    pack(packing())
    assert os.listdir() == ["x.h5"]  # the list of another packing would mislead


def test_only_bad_items_are_no_store():
    with pytest.raises(DataError, match="D150"):
        pack(packing(source=Input(3, bad=range(3)), on_error="skip"))
    assert not Path("x.h5").exists()


def test_an_item_that_is_bad_once_is_read_again():
    source = Input(30, bad=[7])
    real = source.read

    def read(start, stop):
        try:
            return real(start, stop)
        finally:
            source.bad -= {start} if stop - start == 1 else set()

    source.read = read
    assert pack(packing(source=source)).bad == []
    assert len(labels("x.h5")[0]) == 30


def test_after_a_worker_was_killed_the_error_names_what_it_read():
    source = Input(deadly=[3999], spared=os.getpid())
    with pytest.raises(ResourceError, match=r"R153.*killed while it read .*item \d+ or what"):
        pack(packing(source=source), 2)
    source.deadly.clear()
    assert pack(packing(source=source), 2).resumed > 0
    assert content("x.h5") == straight("x.h5")


# ------------------------------------------------------------------------------- disk, locks, parts


def pack_on_a_small_disk(path, size_bytes, queue):
    """Pack in a child process whose files are limited to ``size_bytes``, and report the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    try:
        pack(packing(path))
    except BaseException as error:  # noqa: BLE001  # the parent sees every error
        queue.put((isinstance(error, ResourceError), str(error)))


@pytest.mark.parametrize(
    ("path", "size_bytes"), [("x.h5", 0), ("x.lmdb", 300_000), ("x.h5", 2_000_000)]
)
def test_a_full_disk_leaves_the_old_store_and_finished_jobs(path, size_bytes):
    conftest.write_store(path, conftest.make_records(3))
    queue = multiprocessing.get_context("fork").SimpleQueue()
    assert in_child(pack_on_a_small_disk, path, size_bytes, queue) == 0
    is_resource, words = queue.get()
    assert is_resource, words
    assert re.search(r"R101.*cannot write.*the same command resumes", words) or not size_bytes, (
        words
    )
    assert len(labels(path)[0]) == 3
    packed = pack(packing(path))
    assert (packed.resumed > 0) == (size_bytes == 2_000_000)
    assert content(path) == straight(path)


def test_too_small_a_disk_is_said_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result([4096, 4096, 9, 9, 9, 0, 0, 0, 0, 255])
    )
    with pytest.raises(ResourceError, match=r"R151.*bytes, 36,864 are free: [\d,]+ are missing"):
        pack(packing())


def test_an_interrupt_leaves_the_old_store_and_finished_jobs():
    def interrupt(now):
        if now.items > COUNT / 2:
            raise KeyboardInterrupt

    conftest.write_store("x.h5", conftest.make_records(3))
    with pytest.raises(KeyboardInterrupt):
        pack(packing(), 2, interrupt)
    assert len(labels("x.h5")[0]) == 3
    assert sorted(os.listdir()) == ["x.h5", "x.h5.parts"]
    assert pack(packing(), 2).resumed > 0
    assert content("x.h5") == straight("x.h5")


def test_a_second_packer_learns_who_the_first_is():
    packer = start_packing()
    wait_for("x.h5.parts/files/*")
    os.kill(packer.pid, signal.SIGSTOP)
    with pytest.raises(ResourceError, match=rf"R150.*process {packer.pid} on .* since"):
        pack(packing())
    packer.kill()
    packer.join()
    assert pack(packing()).manifest is not None  # a dead one's lock is free
    assert os.listdir() == ["x.h5"]


@pytest.mark.parametrize(("path", "one_file"), WAYS[1:3])
def test_parts_in_any_order_make_the_same_bytes(path, one_file):
    for part in (2, 0, 1):
        packed = pack(packing(path, one_file=one_file, part=part, parts=3))
        assert (packed.manifest is None) == (part != 1)
    assert content(path) == straight(path, one_file=one_file)
    assert os.listdir() == [path]


# ----------------------------------------------------------------------------------- what was there


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_a_file_or_folder_takes_the_place_of_either(before, after):
    pack(packing(source=Input(50), one_file=before))
    pack(packing(one_file=after))
    assert content("x.h5") == straight("x.h5", one_file=after)
    assert os.listdir() == ["x.h5"]


def test_a_damaged_file_of_a_finished_job_is_found_when_joining():
    in_child(packed_until, "x.h5", True, durable, "move", -1)
    file = Path("x.h5.parts/files/000001.h5")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"D155.*000001"):
        pack(packing())
    pack(packing())
    assert content("x.h5") == straight("x.h5")


class ItemByItem:
    """Arrays as an input gives them that reads item by item, under keys that are stored."""

    def __init__(self, source):
        self.source, self.manifest = source, source.manifest

    def read(self, start, stop):
        chunk = self.source.read(start, stop)
        return chunk._replace(keys=list(chunk.keys))

    def name(self, index):
        return self.source.name(index)


@pytest.mark.parametrize(
    ("path", "one_file", "num_workers"), [(*WAYS[0], 0), (*WAYS[1], 2), (*WAYS[2], 2)]
)
def test_arrays_packed_as_vectors_are_those_packed_one_by_one(
    monkeypatch, path, one_file, num_workers
):
    monkeypatch.setattr(jobs, "ARRAY_JOB_BYTES", 60_000)
    monkeypatch.setattr(jobs, "ARRAY_BLOCK_ITEMS", 999)
    rng = np.random.default_rng(0)
    np.savez("a.npz", x=rng.random((10_000, 4), np.float32), label=np.arange(10_000) % 3)
    source = ArraysInput("a.npz", None)
    pack(packing(path, source, one_file=one_file), num_workers)
    pack(packing(f"old-{path}", ItemByItem(source), one_file=one_file))
    new, old = open_store(path), open_store(f"old-{path}")
    assert (new.manifest.first_key, old.manifest.first_key) == (0, None)
    assert (new.manifest.digest, new.manifest.class_counts) == (
        old.manifest.digest,
        old.manifest.class_counts,
    )
    every = torch.randperm(10_000)
    records = new.read(every)
    for name, values in old.read(every).items():
        assert torch.equal(records[name], values)
    assert new.damaged(every, records) == []
    assert all(new.key(index) == old.key(index) for index in range(0, 10_000, 97))
    assert verify_store.verify(path, 0, lambda _: None).findings == []


def test_bad_items_are_listed_in_order_whatever_their_names():
    bad = [BadItem(7, "b\udcff\n", "D106", "broken"), BadItem(2, "ü", "D106", "empty")]
    listing = list_bad(Path("x.h5"), bad)
    assert [
        json.loads(line)["item"] for line in listing.read_text(encoding="ascii").splitlines()
    ] == [2, 7]
    assert not list_bad(Path("x.h5"), []).exists()


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_folders_manifest_names_its_files_with_their_checksums(path):
    packed = pack(packing(path, one_file=False))
    shards = open_store(path).manifest.shards
    assert (
        sum(shard.size_bytes for shard in shards) + (Path(path) / "manifest.json").stat().st_size
        == packed.num_bytes
    )
    assert len({shard.sha256 for shard in shards}) == len(shards) > 1


def _stand(kind):
    """Put something at x.h5 that somebody may want back."""
    path = Path("x.h5")
    if kind == "folder":
        path.mkdir()
        (path / "photo.jpg").write_bytes(b"mine")
    elif kind == "link":
        Path("other.h5").write_bytes(b"mine")
        path.symlink_to("other.h5")
    elif kind in ("hdf5", "truncated hdf5"):
        with h5py.File(path, "w") as file:
            file["x"] = [1] * 1000
        if kind == "truncated hdf5":
            path.write_bytes(path.read_bytes()[:4000])
    elif kind == "lmdb with named databases":
        with (
            lmdb.open(str(path), subdir=False, max_dbs=1, lock=False) as environment,
            environment.begin(environment.open_db(b"images"), write=True) as transaction,
        ):
            transaction.put(b"photo", b"mine")
    else:
        path.write_bytes(b"mine")


STANDS = ["folder", "link", "hdf5", "truncated hdf5", "lmdb with named databases", "file"]


@pytest.mark.parametrize("kind", STANDS)
def test_what_is_no_store_of_ours_is_not_replaced(kind):
    _stand(kind)
    before = sorted((str(path), path.read_bytes()) for path in Path().rglob("*") if path.is_file())
    with pytest.raises(DataError, match=r"D115.*x\.h5"):
        pack(packing("x.h5"))
    after = sorted((str(path), path.read_bytes()) for path in Path().rglob("*") if path.is_file())
    assert after == before


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_a_damaged_store_is_replaced_if_its_manifest_is_found(path):
    pack(packing(path))
    whole_file = Path(path).read_bytes()
    damaged = whole_file.replace(b'"source": "memory"', b'"source": "Memory"')
    Path(path).write_bytes(damaged)
    pack(packing(path))
    assert Path(path).read_bytes() == whole_file != damaged


def peak_bytes(count):
    """Return the memory that packing an array of so many numbers takes at most."""
    np.save("x.npy", np.zeros(count, np.float32))
    tracemalloc.start()
    pack(packing(source=ArraysInput("x.npy", None)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_number_of_records(monkeypatch):
    monkeypatch.setattr(jobs, "ARRAY_JOB_BYTES", 1 << 20)
    assert peak_bytes(2 << 20) < peak_bytes(1 << 19) + (1 << 20)


# ---------------------------------------------------------------------------------- the user's code

MAKER = """
import threading

def make(n):
    if n == 3998 and {fails}:
        raise ValueError("has no record")
    return {{"x": [n * {factor}] * 100}}

class Numbers:
    def __init__(self, lock=None):
        self.lock = lock

    def __len__(self):
        return 4000

    def __getitem__(self, n):
        return make(n)
"""


def maker_input(kind, factor, fails=False):
    """Write a module, import it again, and return an input that uses it."""
    Path("maker_of_pack.py").write_text(MAKER.format(factor=factor, fails=fails))
    spec = importlib.util.spec_from_file_location("maker_of_pack", "maker_of_pack.py")
    module = sys.modules["maker_of_pack"] = importlib.util.module_from_spec(spec)
    text = Path("maker_of_pack.py").read_text()
    module.__file__ = os.path.abspath("maker_of_pack.py")
    exec(compile(text, module.__file__, "exec"), vars(module))
    if kind == "function":
        return FunctionInput("maker_of_pack.make", module.make, None, 4000, None)
    lock = threading.Lock() if kind == "locked" else None
    return DatasetInput(module.Numbers(lock), None, None)


@pytest.mark.parametrize("kind", ["function", "dataset"])
def test_when_the_user_s_code_has_changed_packing_starts_anew(kind):
    notes = []
    with pytest.raises(DataError, match=r"U100.*has no record"):
        pack(packing(source=maker_input(kind, 1, fails=True)))
    packed = pack(packing(source=maker_input(kind, 2)), on_note=notes.append)
    assert packed.resumed == 0
    assert stored("x.h5", "x") == list(range(0, 8000, 2))
    assert len(notes) == 1
    assert notes[0].startswith("x.h5.parts: packing starts again, since the code or the state of")


@pytest.mark.parametrize(("kind", "resumes"), [("function", 1), ("dataset", 1), ("locked", 0)])
def test_jobs_of_the_same_code_are_kept_unless_nobody_can_tell(kind, resumes):
    def interrupt(now):
        if now.items > COUNT / 2:
            raise KeyboardInterrupt

    notes = []
    with pytest.raises(KeyboardInterrupt):
        pack(packing(source=maker_input(kind, 1)), on_progress=interrupt)
    packed = pack(packing(source=maker_input(kind, 1)), on_note=notes.append)
    assert (packed.resumed > 0) == resumes
    assert stored("x.h5", "x") == list(range(4000))
    assert ["may have changed: it cannot be pickled" in note for note in notes] == [True] * (
        1 - resumes
    )
