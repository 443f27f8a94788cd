"""Reading shards at any place; tests/contract has what every store promises."""

import os

import numpy as np
import pytest
import torch

from framework.errors import DataError
from framework.input.tar import TarInput
from framework.store import tar_store
from framework.store.tar_store import TarStore
from tests.contract.cases import jpeg, plain, write_tar
from tests.store.test_values import npy


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
    store = TarStore("x.tar", _fields())
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
    store = TarStore("tars")
    assert [bytes(image) for image in store.read(torch.arange(5))["image"]] == [
        jpeg(number) for number in range(5)
    ]
    assert len(store._views) == 2


@pytest.mark.parametrize("opened", [False, True])
def test_a_shard_that_is_replaced_is_noticed(opened):
    store = TarStore(_write(), _fields())
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
    store = TarStore(_write(), _fields())
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
        _ = TarStore(write_tar("x.tar", members), fields).manifest


def test_a_record_with_another_shape_is_named():
    members = [("a.npy", npy(np.zeros(3))), ("b.npy", npy(np.zeros(4)))]
    store = TarStore(write_tar("x.tar", members), {"x": "npy"})
    assert store.read(torch.tensor([0]))["x"].shape == (1, 3)
    with pytest.raises(
        DataError, match=r"D167.*b\.npy: x: is float64 \(4,\).*'data\.kinds=\{x: ragged\}'"
    ):
        store.read(torch.tensor([1]))
    assert plain(TarStore("x.tar", {"x": "npy"}, kinds={"x": "ragged"}).read(torch.arange(2))) == {
        "x": [[0.0] * 3, [0.0] * 4]
    }
