"""Write a table as Parquet, through pyarrow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

ColumnParts = Iterator[Mapping[str, Sequence[Any]]]


def write_row_groups(file: IO[bytes], parts: ColumnParts) -> None:
    """Write the columns of each part as a group of rows. The first part decides names and types.

    Values of a column are texts, whole numbers or floats.
    """
    import pyarrow  # noqa: ICN001, PLC0415  # an extra

    writer: Any = None
    try:
        for columns in parts:
            if writer is None:
                writer = _writer_of(file, columns)
            plain = {name: list(map(_storable, values)) for name, values in columns.items()}
            writer.write_table(pyarrow.table(plain, schema=writer.schema))
    finally:
        if writer is not None:
            writer.close()


def _writer_of(file: IO[bytes], columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a writer of tables with the names and types of these columns."""
    import pyarrow  # noqa: ICN001, PLC0415  # an extra
    import pyarrow.parquet  # noqa: PLC0415

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    first = {name: values[0] if values else "" for name, values in columns.items()}
    schema = pyarrow.schema([(name, types[type(value)]) for name, value in first.items()])
    return pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")


def _storable(value: Any) -> Any:
    """Return a text without the bytes of a file's name that are no UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return value
