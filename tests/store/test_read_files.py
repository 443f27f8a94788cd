import os
import time
from pathlib import Path

import numpy as np
import pytest

from framework.errors import DataError, ResourceError
from framework.store import read_files as module
from framework.store.read_files import AT_ONCE, ask_item_files, read_files
from framework.store.staging import cached_share, drop_cached


def write_files(count, num_bytes=10_000):
    """Write files that differ from each other, and return their paths and contents."""
    rng = np.random.default_rng(0)
    contents = [rng.bytes(num_bytes + number) for number in range(count)]
    for number, content in enumerate(contents):
        Path(f"{number}.bin").write_bytes(content)
    return [f"{number}.bin" for number in range(count)], contents


def open_files():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("count", [0, AT_ONCE, AT_ONCE + 1])
def test_contents_come_in_the_order_of_the_paths(count):
    paths, contents = write_files(count)
    assert read_files(paths) == contents
    assert read_files(paths[::-1]) == contents[::-1]


@pytest.mark.parametrize("bad", ["gone.bin", "folder"])
@pytest.mark.parametrize("place", [0, 20, 50])
def test_a_file_that_cannot_be_read_is_named_and_none_stays_open(bad, place):
    os.mkdir("folder")
    paths, _ = write_files(50)
    paths.insert(place, bad)
    before = open_files()
    with pytest.raises(DataError, match=rf"D101\]: {bad}: cannot be read"):
        read_files(paths)
    assert open_files() == before


def make_cold(paths):
    try:
        drop_cached(paths)
    except ResourceError as error:
        pytest.skip(f"this file system keeps files in memory: {error}")


def wait_until_read(paths):
    end = time.monotonic() + 20
    while cached_share(paths) < 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert cached_share(paths) == 1


def test_all_are_asked_for_before_the_first_is_read():
    paths, _ = write_files(AT_ONCE - 1)
    make_cold(paths)
    with pytest.raises(DataError):
        read_files([*paths, "gone.bin"])  # no file is read, since this one cannot be opened
    wait_until_read(paths)


class OfFiles:
    """An input of which only the files are asked for: some for each item."""

    def __init__(self, *paths):
        self.paths = paths

    def item_files(self, index):
        return self.paths[index]


def test_files_of_items_are_read_ahead():
    paths, _ = write_files(60)
    make_cold(paths)
    pairs = list(zip(paths[::2], paths[1::2], strict=True))
    before = open_files()
    ask_item_files(OfFiles(*pairs), range(30))
    assert open_files() == before
    wait_until_read(paths)


@pytest.fixture
def asked(monkeypatch):
    """Return a list that gets the size of each file that is asked for."""
    sizes = []
    monkeypatch.setattr(module, "_ask", lambda file: sizes.append(os.fstat(file).st_size))
    return sizes


class Refused(OfFiles):
    def item_files(self, index):
        raise DataError(165, "x.csv", "is not under its root", "set input.root")


@pytest.mark.parametrize(
    "source",
    [OfFiles(["0.bin"], ["0.bin"], ["1.bin"]), OfFiles([], [], []), Refused(), object()],
    ids=["one file for two items", "no file", "a path that is not allowed", "no item_files"],
)
def test_files_that_items_share_or_that_nobody_knows_are_not_asked_for(source, asked):
    write_files(2)
    ask_item_files(source, range(3))
    assert asked == []
