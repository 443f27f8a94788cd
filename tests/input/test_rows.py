import os
import socket
from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError
from framework.input.rows import field_of, first_fields, read_file, text_by_field
from framework.store.files import walk

FIELDS = {"image": Field("uint8", (3, None, None), "image"), "x": Field("int64", (2,))}


@pytest.mark.parametrize("given", [None, {}, [], ["image"], "image", 3])
def test_an_option_that_maps_no_field_is_refused(given):
    with pytest.raises(ConfigError, match=r"C162.*input\.fields = .*give input\.fields=\{x: y\}"):
        text_by_field("fields", given, "{x: y}")


@pytest.mark.parametrize(
    ("value", "number"), [(b"text", 106), (b"", 106), (np.array(["a"]), 167), (None, 167)]
)
def test_what_no_store_holds_is_named(value, number):
    with pytest.raises(DataError, match=f"D{number}.*here"):
        field_of(value, "here")


def test_the_first_readable_item_with_a_record_says_what_there_is():
    rows = {0: [{"x": b"broken"}], 1: [], 2: [{"x": np.array(1)}]}
    assert first_fields(3, rows.__getitem__, str) == {"x": Field("int64", ())}


@pytest.mark.parametrize(("row", "number"), [([], 110), ([{"x": b"broken"}], 106)])
def test_no_readable_item_is_an_error(row, number):
    with pytest.raises(DataError, match=f"D{number}"):
        first_fields(3, lambda _: row, str)


def test_links_and_special_files_are_left_out_and_never_opened():
    for name in ("in/a.jpg", "outside/b.jpg"):
        Path(name).parent.mkdir()
        Path(name).write_bytes(b"")
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
