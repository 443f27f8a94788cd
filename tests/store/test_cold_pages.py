import mmap
import threading
import time

import numpy as np
import pytest
import torch

from framework.contracts.records import Field
from framework.errors import ResourceError
from framework.store import file_store, hdf5_store, lmdb_store, staging
from framework.store.gather import ask_pages, map_of, should_ask
from framework.system import native
from tests.conftest import write_store

PAGE = mmap.PAGESIZE
NUM_PAGES = 4096
FEWEST = 16  # as in ask_pages.c
CHECK = 4

pytestmark = pytest.mark.skipif(not native.are_compiled(), reason="the C functions are missing")


@pytest.fixture
def cold(tmp_path):
    """Return the path of a file of NUM_PAGES pages that are not in memory."""
    path = tmp_path / "cold.bin"
    path.write_bytes(np.arange(NUM_PAGES * PAGE, dtype=np.uint8).tobytes())
    try:
        staging.drop_cached([str(path)])
    except ResourceError as error:
        pytest.skip(f"this file system keeps files in memory: {error}")
    return str(path)


def pages_in_memory(path):
    return round(staging.cached_share([path]) * NUM_PAGES)


def in_a_new_thread(function):
    """Return what ``function`` returns in a thread that has read nothing yet."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def settled_answers():
    """Return the answers of a thread until it no longer asks."""
    return [should_ask() for _ in range(FEWEST + 3 * CHECK)]


def test_pages_are_read_without_being_touched_and_no_others_are(cold):
    file = np.memmap(cold, np.uint8, "r")
    starts = torch.arange(100) * 40  # every 40th page, and half of the next
    asked = ask_pages(map_of(file), starts, PAGE * 3 // 2, PAGE)
    assert asked == 100 * (PAGE * 3 // 2)
    end = time.monotonic() + 20
    while pages_in_memory(cold) < 200 and time.monotonic() < end:
        time.sleep(0.01)
    assert pages_in_memory(cold) == 200


@pytest.mark.parametrize(
    ("start", "size", "stride"),
    [(-1, 1, 1), (10, 1, 1), (9, 2, 1), (0, 11, 1), (0, 0, 1), (4, 2, 3), (2**62, 1, 8), (0, 1, 0)],
)
def test_pieces_outside_of_the_map_are_left_out(start, size, stride):
    data = np.zeros(10, np.uint8)
    assert ask_pages(map_of(data), torch.tensor([start]), size, stride) == 0


def test_a_thread_that_had_to_wait_for_the_disk_asks_again(cold):
    file = np.memmap(cold, np.uint8, "r")

    def answers():
        settled_answers()
        file[NUM_PAGES // 2 * PAGE]  # a page fault
        return [should_ask() for _ in range(CHECK)]

    assert True in in_a_new_thread(answers)


FIELDS = {"image": Field("uint8", (3, 8, 8)), "boxes": Field("float32", (None, 4), "ragged")}


@pytest.mark.parametrize("ending", ["h5", "lmdb"])
@pytest.mark.parametrize("names", [["image"], ["image", "boxes"]])
def test_records_are_the_same_whether_pages_are_asked_for_or_not(
    tmp_path, monkeypatch, ending, names
):
    rng = np.random.default_rng(0)
    records = {
        "image": rng.integers(0, 256, (50, 3, 8, 8), np.uint8),
        "boxes": [rng.random((number % 4, 4), np.float32) for number in range(50)],
    }
    fields = {name: FIELDS[name] for name in names}
    path = write_store(str(tmp_path / f"a.{ending}"), {key: records[key] for key in names}, fields)
    order = torch.randperm(50)
    results = []
    for asks in (True, False):
        monkeypatch.setattr(file_store, "should_ask", lambda asks=asks: asks)
        store = {"h5": hdf5_store.HDF5Store, "lmdb": lmdb_store.LMDBStore}[ending](path)
        results.append(store.read(order))
        store.close()
    with_asking, without = results
    assert torch.equal(with_asking["image"], without["image"])
    if "boxes" in names:
        assert torch.equal(with_asking["boxes"].values, without["boxes"].values)
        assert torch.equal(with_asking["boxes"].lengths, without["boxes"].lengths)
