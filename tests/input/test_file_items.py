import os
import socket
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.input.file_items import read_file, read_part
from framework.store.walk_tree import named_files, walk

HARD_NAMES = [
    "e\u0301.jpg",
    "\u00e9.jpg",
    "\U0001f600.jpg",
    "\u202egpj.jpg",
    "two\nlines.jpg",
    "n" * 251 + ".jpg",
    os.fsdecode(b"\xff\xfe.jpg"),
]


def _write(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with open(name, "wb") as file:
            file.write(os.fsencode(name))


def test_files_come_in_byte_order_at_any_depth():
    _write("in/b/2.jpg", "in/b/10.jpg", "in/a/x/1.JPG", "in/B.jpg", "in/a.txt")
    walked = walk("in", (".jpg",))
    assert walked.names == ["B.jpg", "a/x/1.JPG", "b/10.jpg", "b/2.jpg"]
    assert walked.left_out == ""


def test_the_order_of_the_file_system_does_not_matter(monkeypatch):
    _write(*(f"in/{number % 3}/{number}.jpg" for number in range(20)))
    expected, scandir = walk("in"), os.scandir

    class Backwards(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", lambda path: Backwards(list(scandir(path))[::-1]))
    assert walk("in") == expected


def test_links_and_special_files_are_left_out_and_never_opened():
    _write("in/a.jpg", "outside/b.jpg")
    os.symlink("../outside/b.jpg", "in/link.jpg")
    os.symlink("../outside", "in/folder")
    os.symlink(".", "in/loop")
    os.symlink("nowhere", "in/dangling.jpg")
    os.mkfifo("in/pipe.jpg")  # to open it would wait for ever
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("in/socket.jpg")
        walked = walk("in", (".jpg",))
    assert walked.names == ["a.jpg"]
    assert walked.left_out == " (6 links and special files left out)"


def test_a_pipe_is_not_opened_even_when_it_is_named():
    os.mkfifo("pipe")
    with pytest.raises(DataError, match=r"D101.*pipe: not a regular file"):
        read_file("pipe")


@pytest.mark.parametrize("name", ["gone", "folder", "zero\0byte", "n" * 300, os.fsdecode(b"\xff")])
def test_what_cannot_be_read_is_named(name):
    Path("folder").mkdir()
    with pytest.raises(DataError, match="D101"):
        read_file(name)


def test_a_part_that_is_not_all_there_is_an_error():
    _write("in/a.jpg")
    assert read_part("in/a.jpg", 3, 5, "x") == b"a.jpg"
    with pytest.raises(DataError, match=r"D166.*x: truncated: 6 bytes wanted, have 5"):
        read_part("in/a.jpg", 3, 6, "x")
    with pytest.raises(DataError, match=r"D101.*gone"):
        read_part("gone", 3, 6, "x")


def test_a_path_is_a_file_a_folder_or_a_pattern():
    _write("in/b.tar", "in/a.tar", "in/c.txt", "in/deep/d.tar")
    os.symlink("a.tar", "in/link.tar")
    assert named_files("in/c.txt", (".tar",)) == ["in/c.txt"]
    assert named_files("in", (".tar",)) == ["in/a.tar", "in/b.tar", "in/deep/d.tar"]
    assert named_files("in/*.tar") == ["in/a.tar", "in/b.tar", "in/link.tar"]
    assert named_files("in/**/d.tar") == ["in/deep/d.tar"]
