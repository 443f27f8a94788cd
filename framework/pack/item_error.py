"""The errors of a preparation, which knows the keys of records only, with the names of items."""

from framework.contracts.records import RecordInput
from framework.errors import DataError


def item_error(error: DataError, source: RecordInput, item: int, key: str) -> DataError:
    """Return the error of a record with the name of its item, which leads to the file.

    Args:
        error: Begins with the record's key.
        source: The input of the item.
        item: The item's number.
        key: The record's key.
    """
    number, where, what, fix = error.args
    name = source.name(item)
    if key in name:
        where = where.removeprefix(key)
    else:
        name += ": "
    return DataError(number, f"{name}{where}", what, fix)
