import os
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Manifest
from framework.errors import DataError
from framework.store.folder_store import FolderStore, FolderWriter
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from tests.conftest import FIELDS, make_records
from tests.contract.cases import IMAGE_FIELDS, encoded_records, plain, rows

WRITERS = {
    "x.h5": (HDF5Writer, HDF5Store),
    "x.lmdb": (LMDBWriter, LMDBStore),
    "x": (FolderWriter, FolderStore),
}
FILES = ("x.h5", "x.lmdb")  # a folder is never replaced
KEYS = ["a/b.jpg", "", "ü", "\udcff", "日本", "x" * 600]
KINDS = {"raw": (FIELDS, make_records), "image": (IMAGE_FIELDS, encoded_records)}


@pytest.fixture(params=WRITERS)
def path(request):
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def _start(path, kind="raw", count=6, parts=2):
    """Return a writer that was given all its records and not closed."""
    fields, make = KINDS[kind]
    writer, records = WRITERS[path][0](path, fields=fields, num_records=count), make(count)
    for rows_of_part in np.array_split(np.arange(count), parts):
        start, stop = rows_of_part[0], rows_of_part[-1] + 1
        writer.write(
            {name: values[start:stop] for name, values in records.items()}, KEYS[start:stop]
        )
    return writer


def _manifest(kind="raw", count=6):
    return Manifest(count, KINDS[kind][0], ["a", "b", "c"])


def _num_records(path):
    store = WRITERS[path][1](path)
    result = store.manifest.num_records
    store.close()
    return result


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("path", FILES)
def test_what_was_written_in_parts_is_read_as_one(path, kind, parts):
    _start(path, kind, parts=parts).close(_manifest(kind))
    store = WRITERS[path][1](path)
    assert plain(store.read(torch.arange(6))) == rows(KINDS[kind][1](6), range(6))
    store.close()


def test_every_record_is_there_after_the_close(path, kind):
    _start(path, kind).close(_manifest(kind))
    assert _num_records(path) == 6
    assert os.listdir() == [path]


def test_what_was_not_closed_is_not_readable(path, kind):
    writer = _start(path, kind)
    assert not os.path.exists(path)
    with pytest.raises(DataError, match="D101"):
        _num_records(path)
    writer.abort()


@pytest.mark.parametrize("path", FILES)
def test_the_old_file_stays_until_the_close(path):
    _start(path, count=3).close(_manifest(count=3))
    writer = _start(path)
    assert _num_records(path) == 3
    writer.close(_manifest())
    assert _num_records(path) == 6
    assert os.listdir() == [path]


@pytest.mark.parametrize("path", FILES)
def test_an_abort_leaves_the_old_file(path):
    _start(path, count=3).close(_manifest(count=3))
    _start(path).abort()
    assert _num_records(path) == 3
    assert os.listdir() == [path]


def test_an_abort_leaves_nothing_behind(path, kind):
    _start(path, kind).abort()
    assert os.listdir() == []


def test_an_abort_before_anything_was_written_leaves_nothing(path):
    WRITERS[path][0](path, fields=FIELDS, num_records=6).abort()
    assert os.listdir() == []


def test_aborting_twice_does_nothing_more(path):
    writer = _start(path)
    writer.abort()
    writer.abort()
    assert os.listdir() == []


def test_an_abort_after_the_close_does_nothing(path, kind):
    writer = _start(path, kind)
    writer.close(_manifest(kind))
    writer.abort()
    assert _num_records(path) == 6


def test_missing_folders_are_made(path):
    writer_class = WRITERS[path][0]
    writer = writer_class(f"one/two/{path}", fields=FIELDS, num_records=2)
    writer.write(make_records(2), KEYS[:2])
    writer.close(_manifest(count=2))
    assert os.listdir("one/two") == [path]


def test_everything_is_on_disk_when_the_close_returns(path, kind, monkeypatch):
    synced, real = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(os.fstat(file).st_ino), real(file)))
    _start(path, kind).close(_manifest(kind))
    written = [Path(path), *(file for file in Path(path).rglob("*") if file.is_file())]
    assert {file.stat().st_ino for file in written if file.is_file()} <= synced
    assert Path().stat().st_ino in synced
