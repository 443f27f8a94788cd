"""Print a table on the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

COLUMNS = 110  # without a terminal Rich wraps rows at 80 columns


def print_table(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    rows: Iterable[Sequence[str]],
    last: Sequence[str] = (),
) -> None:
    """Print ``rows`` below the headings of columns.

    Args:
        title: The line above the table.
        left: The first columns, which are aligned to the left.
        right: The next columns, which are aligned to the right.
        rows: The cells of each row. A short row has empty cells at its end.
        last: The last columns, which are aligned to the left.
    """
    table = Table(*left, title=title, title_justify="left")
    for name in right:
        table.add_column(name, justify="right")
    for name in last:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width, COLUMNS)
    console.print(table)
