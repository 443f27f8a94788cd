"""Reading shards at any place, and their index; tests/contract has what every store promises."""

import gzip
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.errors import DataError
from framework.input.tar import TarInput
from framework.store import tar_index, tar_store
from framework.store.tar_index import index_places, list_shard, shard_index
from tests.contract.cases import jpeg, plain, write_tar
from tests.store.test_foreign import npy


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Put the user's cache folder into this test's temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _fields():
    return {"image": "jpg", "x": "npy", "score": "score.txt", "label": "cls"}


def _write(count=5, path="x.tar"):
    members = []
    for number in range(count):
        members += [(f"{number}.jpg", jpeg(number)), (f"{number}.cls", b"%d" % (number % 3))]
        members += [(f"{number}.npy", npy(np.arange(6, dtype=np.float32).reshape(2, 3) + number))]
        members += [(f"{number}.score.txt", b"0.%d" % number)]
    return write_tar(path, members)


def test_a_shard_reads_as_its_packed_store_would():
    source = TarInput(_write(), _fields(), None, None)
    packed, keys = source.read(0, 5)
    store = tar_store.TarStore("x.tar", _fields())
    assert plain(store.read(torch.arange(5))) == plain(packed)
    assert [store.key(index) for index in range(5)] == keys
    assert store.manifest.classes == source.manifest.classes
    assert store.manifest.class_counts == [2, 2, 1]
    assert {name: (f.dtype, f.shape) for name, f in store.manifest.fields.items()} == {
        name: (f.dtype, f.shape) for name, f in source.manifest.fields.items()
    }


def test_only_some_maps_stay_open(monkeypatch):
    monkeypatch.setattr(tar_store, "MOST_MAPS", 2)
    os.makedirs("tars")
    for number in range(5):
        write_tar(f"tars/{number}.tar", [(f"{number}.jpg", jpeg(number)), (f"{number}.cls", b"0")])
    store = tar_store.TarStore("tars")
    assert [bytes(image) for image in store.read(torch.arange(5))["image"]] == [
        jpeg(number) for number in range(5)
    ]
    assert len(store._views) == 2


@pytest.mark.parametrize("opened", [False, True])
def test_a_shard_that_is_replaced_is_noticed(opened):
    store = tar_store.TarStore(_write(), _fields())
    _ = store.manifest
    if opened:
        store.read(torch.arange(2))
    os.rename(_write(path="y.tar"), "x.tar")
    with pytest.raises(DataError, match=r"D117.*x\.tar.*replaced or rewritten"):
        store.read(torch.tensor([0]))
    if opened:
        with pytest.raises(DataError, match="D117"):
            store.check()


def test_a_shard_that_becomes_shorter_does_not_end_the_process():
    store = tar_store.TarStore(_write(), _fields())
    store.read(torch.arange(5))
    os.truncate("x.tar", 100)
    with pytest.raises(DataError, match="D117"):
        store.read(torch.arange(5))


@pytest.mark.parametrize(
    ("members", "fields", "words"),
    [
        ([("a.jpg", b"text")], None, r"D106.*a\.jpg: image: not a readable image"),
        ([("a.npy", b"text")], {"x": "npy"}, r"D112.*a\.npy"),
        ([("a.cls", b"word")], {"x": "cls"}, r"D162.*not a number.*'data\.kinds=\{x: text\}'"),
        ([("a.cls", b"1"), ("b.jpg", b"")], {"image": "jpg"}, r"D167.*a\.cls: has 0 members"),
        ([("README", b"x")], None, r"D110"),
    ],
)
def test_a_shard_that_cannot_be_trained_on_is_refused_at_the_start(members, fields, words):
    with pytest.raises(DataError, match=words):
        _ = tar_store.TarStore(write_tar("x.tar", members), fields).manifest


def test_a_record_with_another_shape_is_named():
    members = [("a.npy", npy(np.zeros(3))), ("b.npy", npy(np.zeros(4)))]
    store = tar_store.TarStore(write_tar("x.tar", members), {"x": "npy"})
    assert store.read(torch.tensor([0]))["x"].shape == (1, 3)
    with pytest.raises(DataError, match=r"D167.*b\.npy: x: is float64.*data\.kinds=\{x: ragged\}"):
        store.read(torch.tensor([1]))
    assert plain(
        tar_store.TarStore("x.tar", {"x": "npy"}, kinds={"x": "ragged"}).read(torch.arange(2))
    ) == {"x": [[0.0] * 3, [0.0] * 4]}


MEMBERS = [("a/1.jpg", b"x" * 700), ("a/1.CLS", b"3"), ("b.seg.png", b"y"), ("b.txt", b"t" * 99)]
KINDS = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]


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
    monkeypatch.setattr(tar_index, "list_shard", None)
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
