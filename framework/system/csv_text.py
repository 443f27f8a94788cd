"""Cells of CSV files that a spreadsheet and a terminal show, and do not obey."""

from contextlib import suppress
from typing import Any

from framework.errors import escaped

FORMULA = (
    "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # the last four are the wide forms of East Asian keyboards
)
QUOTE = "'"


def csv_cell(value: Any) -> Any:
    """Return a cell for ``csv.writer``. A text that a spreadsheet would compute gets a quote.

    Numbers stay numbers, also those that are texts. Control characters are escaped.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip(QUOTE)[:1] in FORMULA and value.strip(QUOTE):
        with suppress(ValueError):
            float(value)
            return value
        value = QUOTE + value
    return escaped(value)
