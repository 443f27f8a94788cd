"""Helpers for all tests, and a police that fails a test that leaves anything behind."""

import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import settings

from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest
from framework.order.batches import Order
from framework.store import hdf5_store, lmdb_store
from framework.system.stopping import NUMBERS
from framework.transform.none import NoTransform

torch.set_num_threads(1)
settings.register_profile("paceline", deadline=None, max_examples=40)  # machines are shared
settings.load_profile("paceline")


def children_of_this_process() -> set[int]:
    """Return the process ids of this process's children, without zombies."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue
    return {
        pid
        for pid in pids
        if Path(f"/proc/{pid}/stat").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    }


def _threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(("pytest", "TMonitor", "tqdm_monitor"))
    }


def pytest_collection_finish() -> None:
    """Keep what was collected, millions of objects, out of later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries that count their objects at the end see them go."""
    gc.unfreeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a value without a plain name that never changes (bytes, lambdas) by its argument."""
    if isinstance(val, str):
        plain = len(val) <= 60 and val.isprintable() and not val.startswith("/")
        return None if plain else argname
    name = getattr(val, "__name__", "")
    return argname if isinstance(val, bytes) or "<" in name else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let a test and its fixtures draw the same numbers, so that a failure can be repeated."""
    random.seed(0)
    torch.manual_seed(0)


def settled(before: set, now, wait_s: float = 5.0) -> set:
    """Return what is still there beyond ``before`` after some time."""
    end = time.monotonic() + wait_s
    while now() - before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return now() - before


def _end_servers() -> None:
    """End the standard library's processes that forkserver and spawn keep for the next child."""
    forkserver._forkserver._stop()
    if resource_tracker._resource_tracker._fd is not None:
        gc.collect()  # a semaphore that is collected later would start the tracker again
        resource_tracker._resource_tracker._stop()


def _shared_memory() -> set[str]:
    """Return the names of this process's shared memory. Those of torch have its process id."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")}


def orphaned_memory() -> set[str]:
    """Return the names of torch's shared memory whose process has ended."""
    names = {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}
    return {name for name in names if not Path("/proc", name.split("_")[1]).exists()}


ORPHANED_BEFORE = orphaned_memory()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if processes of the tests have left shared memory behind."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and (left := settled(ORPHANED_BEFORE, orphaned_memory)):
        print(f"\nshared memory left behind: {sorted(left)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def police(tmp_path, monkeypatch):
    """Run each test in its own directory, and fail it if it leaves anything behind."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)  # an earlier test may have trained; other numbers add in other orders
    before = children_of_this_process(), _threads(), _shared_memory()
    # a shell that runs the tests in the background may ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in NUMBERS}
    hook = sys.excepthook
    yield
    for number, handler in handlers.items():  # a test of signals has taken them
        signal.signal(number, handler)
    left, sys.excepthook = sys.excepthook, hook
    assert left is hook, "a hook for exceptions left behind"
    multiprocessing.active_children()
    assert not settled(before[1], _threads), "threads left behind"
    _end_servers()
    assert not settled(before[0], children_of_this_process), "processes left behind"
    assert not settled(before[2], _shared_memory), "shared memory left behind"
    assert not list(tmp_path.rglob("*.tmp.*")), "temporary files left behind"


FIELDS = {"image": Field("uint8", (3, 4, 4)), "label": Field("int64", ())}


def make_records(count: int) -> dict[str, np.ndarray]:
    """Return small records that differ from each other."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (count, 3, 4, 4), np.uint8),
        "label": np.arange(count, dtype=np.int64) % 3,
    }


def write_store(path: str, records: dict, fields=None) -> str:
    """Pack ``records`` with the writer that the path's ending names."""
    writer_class = hdf5_store.HDF5Writer if path.endswith(".h5") else lmdb_store.LMDBWriter
    count = len(next(iter(records.values())))
    writer = writer_class(path, fields=fields or FIELDS, num_records=count)
    writer.write(records, [f"record-{number}" for number in range(count)])
    writer.close(Manifest(count, fields or FIELDS, ["a", "b", "c"], source="a test"))
    return path


def edited_manifest(text: str | bytes, **changes) -> str:
    """Return a manifest's text with other values and a fitting CRC32, as an attacker writes it."""
    data = {**json.loads(text), **changes}
    data.pop("crc32", None)
    return json.dumps({**data, "crc32": crc32(json.dumps(data).encode())})


def make_context(
    batch_size: int = 4,
    num_workers: int = 0,
    worker_kind: str = "thread",
    transform=None,
    training: bool = True,
    **options,
) -> SourceContext:
    """Return a SourceContext. Options that are not its fields go to its Order."""
    given = {
        name: options.pop(name)
        for name in list(options)
        if name in SourceContext.__dataclass_fields__ and name != "seed"
    }

    def make(num_records: int) -> Order:
        return Order(num_records, batch_size, **{"shuffle": training, **options})

    given = {"num_workers": num_workers, "worker_kind": worker_kind, **given}
    return SourceContext(make, transform or NoTransform(), training=training, **given)


@pytest.fixture
def epochs_read(monkeypatch) -> list[int]:
    """Return a list of the epochs whose order was asked for, in turn."""
    epochs: list[int] = []
    shares = Order.shares

    def noted(self, epoch, start=0):
        epochs.append(epoch)
        return shares(self, epoch, start)

    monkeypatch.setattr(Order, "shares", noted)
    return epochs
