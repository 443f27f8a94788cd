import os
import socket
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.input.file_items import read_file
from framework.store.walk_tree import walk


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
