"""``input=parquet`` packs the rows of Parquet files."""

import pytest

from framework.errors import ConfigError, DataError
from framework.input.parquet import ParquetInput
from tests.contract.cases import encoded_records, plain, write_parquet


def test_rows_become_records():
    records = encoded_records(7)
    source = ParquetInput(write_parquet("x.parquet", records))
    chunk = source.read(2, 6)
    assert plain(chunk.records) == plain({name: values[2:6] for name, values in records.items()})
    assert chunk.keys == [f"x.parquet:{row}" for row in range(2, 6)]
    assert source.manifest.classes == ["a", "b", "c"]
    assert (source.name(3), source.item_files(3)) == ("x.parquet: row 3", ("x.parquet",))


def test_errors_name_the_options_of_packing():
    source = ParquetInput(write_parquet("x.parquet", encoded_records(3)), {"image": "img"})
    with pytest.raises(ConfigError, match=r"C162.*input\.fields\.image = img"):
        _ = source.manifest
    with pytest.raises(DataError, match=r"D161.*input\.classes"):
        _ = ParquetInput("x.parquet", classes=["a"]).manifest
