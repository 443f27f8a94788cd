"""Tables as Parquet."""

import io

import pytest

from framework.store.table_file import write_row_groups

parquet = pytest.importorskip("pyarrow.parquet")


def test_each_part_is_a_group_of_rows():
    file = io.BytesIO()
    parts = [
        {"key": ["a", "\udcff"], "x": [1.5, 2.0], "n": [1, 2]},
        {"key": ["c"], "x": [0.5], "n": [3]},
    ]
    write_row_groups(file, iter(parts))
    read = parquet.ParquetFile(file)
    assert read.num_row_groups == 2
    assert read.read().to_pydict() == {"key": ["a", "?", "c"], "x": [1.5, 2.0, 0.5], "n": [1, 2, 3]}
