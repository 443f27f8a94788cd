"""The index of a shard, and the headers it is made from."""

import gzip
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from framework.errors import DataError
from framework.store import tar_store
from framework.store.tar_store import index_places, list_shard, shard_index
from tests.contract.cases import write_tar

MEMBERS = [("a/1.jpg", b"x" * 700), ("a/1.CLS", b"3"), ("b.seg.png", b"y"), ("b.txt", b"t" * 99)]
KINDS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Put the user's cache folder into this test's temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _as_lists(index):
    return [value.tolist() if hasattr(value, "tolist") else value for value in index]


def test_members_lie_where_the_index_says():
    data = Path(write_tar("x.tar", MEMBERS)).read_bytes()
    index = list_shard("x.tar")
    assert index.suffixes == ["jpg", "CLS", "seg.png", "txt"]
    assert (index.keys, index.records.tolist()) == (b"a/1b", [(3, 2), (1, 2)])
    ranges = [(start, start + size) for _, start, size, _ in index.members.tolist()]
    assert [data[start:end] for start, end in ranges] == [m[1] for m in MEMBERS]
    assert index.texts == b"3"  # a longer text is read when it is needed


def test_the_index_is_written_once_and_then_read(monkeypatch):
    write_tar("x.tar", MEMBERS)
    first, identity, is_kept = shard_index("x.tar", keep=True)
    assert is_kept
    assert Path("x.tar.paceline").is_file()
    monkeypatch.setattr(tar_store, "list_shard", None)
    again = shard_index("x.tar", keep=True)
    assert (_as_lists(again[0]), again[1:]) == (_as_lists(first), (identity, True))


def test_a_folder_without_write_bits_has_its_index_in_the_cache_even_for_root():
    os.mkdir("fixed")
    write_tar("fixed/x.tar", MEMBERS)
    os.chmod("fixed", 0o555)
    assert all(shard_index("fixed/x.tar", True)[2] for _ in range(2))
    assert os.listdir("fixed") == ["x.tar"]
    assert Path(index_places("fixed/x.tar")[1]).is_file()
    os.chmod("fixed", 0o755)  # so that it can be removed


def test_an_index_that_is_damaged_at_any_byte_is_made_again():
    write_tar("x.tar", MEMBERS)
    expected = _as_lists(shard_index("x.tar", keep=True)[0])
    whole = Path("x.tar.paceline").read_bytes()
    for place in range(0, len(whole), 31):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        Path("x.tar.paceline").write_bytes(damaged)
        assert _as_lists(shard_index("x.tar", keep=False)[0]) == expected
        Path("x.tar.paceline").write_bytes(whole[:place])
        assert _as_lists(shard_index("x.tar", keep=False)[0]) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_is_cut_off_anywhere_is_refused_or_whole(kind):
    whole = Path(write_tar("x.tar", MEMBERS, kind)).read_bytes()
    expected = _as_lists(list_shard("x.tar"))
    for size in [*range(0, len(whole), 97), *range(0, len(whole), 512)]:
        Path("x.tar").write_bytes(whole[:size])
        with suppress(DataError):
            assert _as_lists(list_shard("x.tar")) == expected


def test_a_compressed_archive_is_refused_with_the_command_that_unpacks_it():
    Path("x.tar.gz").write_bytes(gzip.compress(Path(write_tar("x", MEMBERS)).read_bytes()))
    with pytest.raises(DataError, match=r"D166.*x\.tar\.gz.*unpack it to \.tar: gzip -dk"):
        list_shard("x.tar.gz")


def test_a_header_that_asks_for_gigabytes_is_refused():
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    with open("x.tar", "wb") as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1 << 34)  # takes no place on the disk
    with pytest.raises(DataError, match=r"D166.*a header of \d+ bytes"):
        list_shard("x.tar")
