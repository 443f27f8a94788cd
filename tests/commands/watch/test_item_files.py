"""The files of items are noted, and a change of one is noticed."""

import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from framework.commands.watch.item_files import ItemFiles, compared_files, source_lines

LIST = Path("list")


def files_named(*names):
    for name in names:
        Path(name).write_text(name)


def noted(files):
    """Write the list of ``files``. Return how many it names, and one that has changed."""
    files.write(LIST)
    sources = b"".join(source_lines(LIST))
    LIST.write_bytes(sources)
    return compared_files(LIST)


def opened(action):
    """Note the files that ``action`` opens. Return how many, and one that has changed."""
    files = ItemFiles()
    LIST.touch()
    with files.noted():
        action()
    return noted(files)


def test_a_file_that_has_changed_is_named():
    files_named("a", "b", "c")
    assert opened(lambda: [Path(name).read_text() for name in "aab"]) == (2, "")
    Path("c").write_text("other")
    assert compared_files(LIST) == (2, "")
    Path("b").write_text("other")
    assert compared_files(LIST) == (1, "b")
    os.unlink("a")
    assert compared_files(LIST) == (0, "a")


def test_another_file_of_the_same_size_and_time_is_noticed():
    files_named("a")
    status = os.stat("a")
    opened(Path("a").read_text)
    Path("a").write_text("b")
    os.utime("a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert compared_files(LIST)[1] == "a"


def test_a_new_file_in_a_folder_that_was_listed_is_noticed():
    Path("folder").mkdir()
    assert opened(lambda: os.listdir("folder")) == (1, "")
    files_named("folder/a")
    assert compared_files(LIST)[1] == "folder"


def test_a_file_that_was_looked_for_in_vain_is_noticed():
    def look():
        with pytest.raises(FileNotFoundError):
            Path("a").read_bytes()

    assert opened(look) == (1, "")
    files_named("a")
    assert compared_files(LIST)[1] == "a"


def temporary():
    """Write and read one file, and remove another, which somebody else has written."""
    Path("written").write_text("1")
    Path("written").read_text()
    Path("removed").read_text()
    os.unlink("removed")


@pytest.mark.parametrize(
    "action",
    [temporary, lambda: open("/dev/zero").close(), lambda: Path("/proc/uptime").read_text()],
)
def test_what_is_no_source_is_not_compared(action):
    files_named("removed", "written")
    assert opened(action) == (0, "")


def test_an_import_reads_no_source(monkeypatch):
    Path("imported_here.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(os.getcwd())
    assert opened(lambda: __import__("imported_here")) == (0, "")
    del sys.modules["imported_here"]


def test_only_the_block_is_looked_at():
    files_named("a")
    assert opened(lambda: None) == (0, "")
    Path("a").read_text()
    assert opened(lambda: None) == (0, "")


def test_files_that_a_full_disk_refused_are_written_later():
    files_named("a")
    files = ItemFiles()
    files.note("a")
    with pytest.raises(OSError, match="No space left"):
        files.write(Path("/dev/full"))
    assert noted(files) == (1, "")


class Named:
    def __init__(self):
        self.names = ["a", Path("b"), np.array(["c", "missing"]), np.zeros(3), lambda: "too late"]


def test_files_that_a_state_names_are_noted():
    files_named(*"abcd")
    files = ItemFiles()
    files.note_named(Named())
    assert noted(files) == (3, "")


def test_files_that_stay_open_are_noted():
    before = ItemFiles()
    before.note_open()
    with h5py.File("a.h5", "w") as file:
        file["x"] = 1
    with h5py.File("a.h5") as file:
        files = ItemFiles()
        files.note_open()
        assert file["x"][()] == 1
    assert len(files._lines) == len(before._lines) + 1
