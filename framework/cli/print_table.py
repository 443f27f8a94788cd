"""Print a table on the terminal."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table

from framework.errors import printable
from framework.system.safe_text import SafeConsole

COLUMNS = 110  # without a terminal Rich wraps rows at 80 columns
BORDERS = 3  # around a cell, beside one more for the whole row
FOLDED = 8  # the narrowest that a column becomes whose cells may be folded


def print_table(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    rows: Iterable[Sequence[str]],
    last: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print ``rows`` below the headings of columns. Texts that are too long are folded.

    Args:
        title: The line above the table.
        left: The first columns, which are aligned to the left.
        right: The next columns, which are aligned to the right.
        rows: The cells of each row. A short row has empty cells at its end.
        last: The last columns, which are aligned to the left.
        whole: Columns that are not folded, as are those aligned to the right.
    """
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*map(printable, row))  # here, so that columns are as wide
    console = SafeConsole()
    console.width = max(console.width, COLUMNS, _least_width(table))
    console.print(table)


def _least_width(table: Table) -> int:
    """Return the width in which no cell is cut."""
    total = 1
    for column in table.columns:
        longest = max(cell_len(str(text)) for text in (column.header, *column.cells))
        total += BORDERS + (longest if column.no_wrap else min(longest, FOLDED))
    return total
