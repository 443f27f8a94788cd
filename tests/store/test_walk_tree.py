import os
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.input.folder import FolderInput
from framework.input.pairs import PairsInput
from framework.store.folder_store import FolderStore
from framework.store.walk_tree import walk
from tests.contract.cases import jpeg


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(jpeg(0, 8, 8))


def link(target, name):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(os.path.abspath(target), name)


@pytest.fixture
def linked():
    """Make two classes of links: the first is a link to a folder, the second has links to files."""
    touch("photos/cats/1.jpg", "photos/cats/deep/2.jpg", "photos/dogs/3.jpg", "secret/4.jpg")
    link("photos/cats", "in/cat")
    link("photos/dogs/3.jpg", "in/dog/3.jpg")
    link("secret/4.jpg", "in/dog/4.jpg")


def test_links_are_skipped_and_counted():
    touch("in/a/1.jpg", "b/2.jpg")
    link("b", "in/b")
    walked = walk("in")
    assert (walked.names, walked.folders, walked.links) == (["a/1.jpg"], ["a"], 1)
    assert walked.link_notes("x") == (
        "in: 1 symbolic link was skipped; x=ROOT follows those that stay under the folder ROOT",
    )


def test_files_of_other_endings_are_counted_by_ending():
    touch("in/a/1.jpg", "in/a/2.heic", "in/3.HEIC", "in/README", "in/b.txt")
    walked = walk("in", (".jpg",))
    assert walked.notes("x") == ("in: left out: 2 .heic, 1 .txt, 1 without an ending",)


@pytest.mark.usefixtures("linked")
def test_links_that_stay_under_the_root_are_followed():
    walked = walk("in", (".jpg",), "photos")
    assert walked.names == ["cat/1.jpg", "cat/deep/2.jpg", "dog/3.jpg"]
    assert (walked.folders, walked.links) == (["cat", "dog"], 1)
    assert walked.link_notes("x") == (
        "in: 1 symbolic link was skipped: no new file or folder under x = photos",
    )


def test_circles_end_and_every_folder_is_walked_once():
    touch("in/a/1.jpg", "in/b/2.jpg")
    link("in/b", "in/a/to_b")
    link("in/a", "in/b/to_a")
    link("in", "in/a/up")
    os.symlink("self", "in/self")
    os.symlink("nowhere", "in/dangling")
    walked = walk("in", (".jpg",), ".")
    assert walked.names == ["a/1.jpg", "b/2.jpg"]
    assert walked.links == 5


def test_a_link_to_a_pipe_is_not_followed():
    touch("in/a/1.jpg")
    os.mkfifo("in/pipe.jpg")
    link("in/pipe.jpg", "in/a/2.jpg")
    walked = walk("in", (".jpg",), "in")
    assert (walked.names, walked.links, walked.specials) == (["a/1.jpg"], 1, 1)


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    ("read", "key"),
    [
        (lambda: FolderStore("in"), "data"),
        (lambda: FolderInput("in", None, None).manifest, "input"),
        (lambda: FolderInput("in", None, "(.)").manifest, "input"),
        (lambda: PairsInput({"x": "in"}, "fail").manifest, "input"),
    ],
)
def test_the_error_for_a_folder_of_links_says_how_to_follow_them(read, key):
    with pytest.raises(
        DataError,
        match=rf"D191.*in: .*and 3 symbolic links were skipped; .* under: {key}\.follow_links=ROOT",
    ):
        read()
