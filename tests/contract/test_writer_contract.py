import os
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Manifest
from framework.errors import DataError
from framework.store import folder_store, hdf5_store, lmdb_store
from tests.conftest import FIELDS, make_records
from tests.contract.cases import IMAGE_FIELDS, encoded_records, plain, rows

WRITERS = {
    "x.h5": (hdf5_store.HDF5Writer, hdf5_store.HDF5Store),
    "x.lmdb": (lmdb_store.LMDBWriter, lmdb_store.LMDBStore),
    "x": (folder_store.FolderWriter, folder_store.FolderStore),
}
FILES = pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])  # a folder is never replaced
KEYS = ["a/b.jpg", "", "ü", "\udcff", "日本", "x" * 600]
KINDS = {"raw": (FIELDS, make_records), "image": (IMAGE_FIELDS, encoded_records)}


@pytest.fixture(params=WRITERS)
def path(request):
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def written(path, kind="raw", count=6, parts=2):
    """Return a writer that was given all its records and not closed."""
    fields, make = KINDS[kind]
    name = os.path.basename(path)
    writer, records = WRITERS[name][0](path, fields=fields, num_records=count), make(count)
    for part in np.array_split(np.arange(count), parts):
        start, stop = part[0], part[-1] + 1
        chunk = {name: values[start:stop] for name, values in records.items()}
        writer.write(chunk, KEYS[start:stop])
    return writer


def manifest(kind="raw", count=6):
    return Manifest(count, KINDS[kind][0], ["a", "b", "c"])


def num_records(path):
    store = WRITERS[path][1](path)
    result = store.manifest.num_records
    store.close()
    return result


@FILES
@pytest.mark.parametrize("parts", [1, 4])
def test_records_written_in_parts_are_read_as_one(path, kind, parts):
    written(path, kind, parts=parts).close(manifest(kind))
    store = WRITERS[path][1](path)
    assert plain(store.read(torch.arange(6))) == rows(KINDS[kind][1](6), range(6))
    store.close()


def test_only_a_close_makes_the_records_readable_and_then_all_are_on_disk(path, kind, monkeypatch):
    synced, real = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(os.fstat(file).st_ino), real(file)))
    writer = written(path, kind)
    assert not os.path.exists(path)
    with pytest.raises(DataError, match="D101"):
        num_records(path)
    writer.close(manifest(kind))
    files = [file for file in (Path(path), *Path(path).rglob("*")) if file.is_file()]
    assert {file.stat().st_ino for file in files} <= synced
    assert Path().stat().st_ino in synced
    writer.abort()  # too late: does nothing
    assert num_records(path) == 6
    assert os.listdir() == [path]


@FILES
def test_the_old_file_stays_until_the_close_and_after_an_abort(path):
    written(path, count=3).close(manifest(count=3))
    written(path).abort()
    writer = written(path)
    assert num_records(path) == 3
    writer.close(manifest())
    assert num_records(path) == 6
    assert os.listdir() == [path]


def test_an_abort_at_any_time_leaves_nothing_behind(path, kind):
    WRITERS[path][0](path, fields=FIELDS, num_records=6).abort()
    writer = written(path, kind)
    for _ in range(2):
        writer.abort()
        assert os.listdir() == []


def test_missing_folders_are_made(path):
    written(f"one/two/{path}", count=2).close(manifest(count=2))
    assert os.listdir("one/two") == [path]
