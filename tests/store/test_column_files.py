"""Decoded groups of rows; tests/store/test_parquet_store.py has the kinds of columns and files."""

import threading

import numpy as np
import pytest
import torch

from framework.errors import DataError
from framework.store import column_files
from framework.store.column_files import ColumnFiles, FieldColumn
from framework.store.parquet_store import ParquetStore

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
X = {"x": FieldColumn("x", "array")}


def _files(cache_mb=1):
    for number in range(2):
        table = pa.table({"x": np.arange(5) + 10 * number})
        parquet.write_table(table, f"{number}.parquet", row_group_size=2)
    return ColumnFiles(["0.parquet", "1.parquet"], cache_mb)


def test_rows_have_a_group_and_a_file():
    files = _files()
    assert files.firsts.tolist() == [0, 2, 4, 5, 7, 9, 10]

    assert [files.row(index) for index in (4, 5)] == [("0.parquet", 4), ("1.parquet", 0)]
    assert files.group(4, X, None).values["x"].values.tolist() == [12, 13]


def test_a_group_is_decoded_by_one_thread_and_others_wait(monkeypatch):
    files, calls, may_go = _files(), [], threading.Event()
    decoded = files._decoded

    def slow(*arguments):
        calls.append(arguments)
        may_go.wait()
        return decoded(*arguments)

    monkeypatch.setattr(files, "_decoded", slow)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(files.group(1, X, None))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    may_go.set()
    for thread in threads:
        thread.join()
    assert (len(calls), len(results)) == (1, 5)


def test_a_group_that_failed_is_tried_again(monkeypatch):
    files = _files()
    with monkeypatch.context() as patch:
        patch.setattr(column_files, "MOST_GROUP_BYTES", 1)
        with pytest.raises(DataError, match=r"D102.*group 0 has .* bytes, which must be decoded"):
            files.group(0, X, None)
    assert files.group(0, X, None).values["x"].values.tolist() == [0, 1]


BOMBS = {
    "numbers": {"x": [[0] * 200_000] * 2},
    "texts": {"x": [bytes(50_000)] * 5000},
    "plain texts": {"x": [bytes(2_000_000)] * 9},
}


@pytest.mark.parametrize("table", BOMBS.values(), ids=BOMBS)
def test_a_group_that_expands_enormously_is_refused(table, monkeypatch):
    monkeypatch.setattr(column_files, "most_bytes", lambda _: 1 << 20)
    parquet.write_table(pa.table(table), "x.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"D102.*x\.parquet: group 0 cannot be read \(its rows"):
        ParquetStore("x.parquet").read(torch.tensor([0]))
