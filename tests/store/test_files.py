"""Which files there are, what folders hold, and reading many files at once."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import InputTraits
from framework.errors import DataError, ResourceError
from framework.input.folder import FolderInput
from framework.input.pairs import PairsInput
from framework.store import files, folder_store, parquet_store, staging, tar_store
from framework.store import files as module
from tests.contract.cases import jpeg, write_parquet, write_tar


def test_a_digest_samples_names_sizes_and_contents():
    content = np.random.default_rng(0).bytes(2 * files.PIECES * files.PIECE_BYTES)
    changes = {"same": content, "first": b"x" + content[1:]}
    changes |= {"last": content[:-1] + b"x", "longer": content + b"x"}
    for name, data in changes.items():
        Path(name).write_bytes(data)
    assert len({files.sampled_digest([name]) for name in changes}) == len(changes)
    assert files.sampled_digest(["same"], ["a"]) != files.sampled_digest(["same"], ["b"])
    assert files.sampled_digest(["same"] * 1000) != files.sampled_digest(["same"] * 1001)
    assert files.sampled_digest(["gone"])  # whoever reads the file says so


def _folder(path, first):
    for number, name in enumerate("ab", first):
        Path(path, name).mkdir(parents=True)
        Path(path, name, "1.jpg").write_bytes(jpeg(number))
    return folder_store.FolderStore(path)


def _tar(path, first):
    members = [(f"{number}.jpg", jpeg(first + number)) for number in range(2)]
    members += [(f"{number}.cls", b"%d" % number) for number in range(2)]
    return tar_store.TarStore(write_tar(f"{path}.tar", members), keep=False)


def _parquet(path, first):
    records = {"image": [jpeg(first), jpeg(first + 1)], "label": [0, 1]}
    return parquet_store.ParquetStore(str(write_parquet(f"{path}.parquet", records)))


@pytest.mark.parametrize("make", [_folder, _tar, _parquet])
def test_files_that_were_not_packed_have_a_digest(make):
    digests = [make(path, first).manifest.digest for path, first in (("x", 0), ("y", 0), ("z", 1))]
    assert digests[0] == digests[1] != digests[2]


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
    walked = files.walk("in")
    assert (walked.names, walked.folders, walked.links) == (["a/1.jpg"], ["a"], 1)
    assert walked.link_notes("x") == (
        "in: 1 symbolic link was skipped; x=ROOT follows those that stay under the folder ROOT",
    )


def test_files_of_other_endings_are_counted_by_ending():
    touch("in/a/1.jpg", "in/a/2.heic", "in/3.HEIC", "in/README", "in/b.txt")
    walked = files.walk("in", (".jpg",))
    assert walked.notes("x") == ("in: left out: 2 .heic, 1 .txt, 1 without an ending",)


@pytest.mark.usefixtures("linked")
def test_links_that_stay_under_the_root_are_followed():
    walked = files.walk("in", (".jpg",), "photos")
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
    walked = files.walk("in", (".jpg",), ".")
    assert walked.names == ["a/1.jpg", "b/2.jpg"]
    assert walked.links == 5


def test_a_link_to_a_pipe_is_not_followed():
    touch("in/a/1.jpg")
    os.mkfifo("in/pipe.jpg")
    link("in/pipe.jpg", "in/a/2.jpg")
    walked = files.walk("in", (".jpg",), "in")
    assert (walked.names, walked.links, walked.specials) == (["a/1.jpg"], 1, 1)


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    ("read", "key"),
    [
        (lambda: folder_store.FolderStore("in"), "data"),
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


def write_files(count, num_bytes=10_000):
    """Write files that differ from each other, and return their paths and contents."""
    rng = np.random.default_rng(0)
    contents = [rng.bytes(num_bytes + number) for number in range(count)]
    for number, content in enumerate(contents):
        Path(f"{number}.bin").write_bytes(content)
    return [f"{number}.bin" for number in range(count)], contents


def open_files():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("bad", ["gone.bin", "folder"])
@pytest.mark.parametrize("place", [0, 20, 50])
def test_a_file_that_cannot_be_read_is_named_and_none_stays_open(bad, place):
    os.mkdir("folder")
    paths, _ = write_files(50)
    paths.insert(place, bad)
    before = open_files()
    with pytest.raises(DataError, match=rf"D101\]: {bad}: cannot be read"):
        files.read_files(paths)
    assert open_files() == before


def make_cold(paths):
    try:
        staging.drop_cached(paths)
    except ResourceError as error:
        pytest.skip(f"this file system keeps files in memory: {error}")


def wait_until_read(paths):
    end = time.monotonic() + 20
    while staging.cached_share(paths) < 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert staging.cached_share(paths) == 1


def test_all_are_asked_for_before_the_first_is_read():
    paths, _ = write_files(files.AT_ONCE - 1)
    make_cold(paths)
    with pytest.raises(DataError):
        files.read_files([*paths, "gone.bin"])  # no file is read, since this one cannot be opened
    wait_until_read(paths)


class OfFiles(InputTraits):
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
    files.ask_item_files(OfFiles(*pairs), range(30))
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
    files.ask_item_files(source, range(3))
    assert asked == []
