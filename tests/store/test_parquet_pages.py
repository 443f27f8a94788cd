"""Sizes of pages, and small Parquet files that stand for much."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")

from framework.errors import DataError  # noqa: E402
from framework.store import column_files  # noqa: E402
from framework.store.parquet_pages import ParquetPages  # noqa: E402
from framework.store.parquet_store import ParquetStore  # noqa: E402

COUNT = 5000
TABLE = {
    "x": np.arange(COUNT) / 3,
    "text": [f"text {number % 100}" for number in range(COUNT)],
    "lists": [[number, 1] for number in range(COUNT)],
    "flag": [True, None] * (COUNT // 2),
}
WAYS = {
    "default": {},
    "version 2": {"data_page_version": "2.0"},
    "plain": {"compression": "none", "use_dictionary": False},
    "with an index": {"write_page_index": True, "write_page_checksum": True},
    "groups": {"row_group_size": 1000},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_the_size_is_that_of_all_values_and_pages(options):
    pq.write_table(pa.table(TABLE), "x.parquet", **options)
    metadata, pages = pq.ParquetFile("x.parquet").metadata, ParquetPages("x.parquet")
    total = sum(pages.decoded(group).num_bytes for group in range(metadata.num_row_groups))
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    numbers = COUNT * (12 + 4 + 2 * 12 + 5)
    assert numbers < total <= numbers + sum(group.total_byte_size for group in groups)


BOMBS = {
    "numbers": {"x": [[0] * 200_000]},
    "texts": {"x": [bytes(50_000)] * 2000},
    "plain texts": {"x": [bytes(2_000_000)] * 9},
}


@pytest.mark.parametrize("table", BOMBS.values(), ids=BOMBS)
def test_a_group_that_expands_enormously_is_refused(table, monkeypatch):
    monkeypatch.setattr(column_files, "most_bytes", lambda _: 1 << 20)
    pq.write_table(pa.table(table), "x.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"D102.*x\.parquet: group 0 cannot be read \(its "):
        ParquetStore("x.parquet").read(column_files.torch.tensor([0]))
