"""Numbers as text, with three significant digits and a unit, and tables of them on a terminal."""

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table

from framework.errors import printable
from framework.system.safe_text import SafeConsole

NONE = "\N{EN DASH}"
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
# (the least duration in this unit, seconds in the unit, its name): 90 s, not 1.5 min
TIMES = (
    (7200.0, 3600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
    (1e-3, 1e-3, "ms"),
    (-math.inf, 1e-6, "µs"),
)
COLUMNS = 110  # without a terminal Rich wraps rows at 80 columns
BORDERS = 3  # around a cell, beside one more for the whole row
FOLDED = 8  # the narrowest that a column becomes whose cells may be folded


def rate(value: float | None) -> str:
    """Return three significant digits, or all digits before the point."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Return a fraction of a whole in percent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def plain(value: float | None) -> str:
    """Return a number without a unit: a whole number in full, any other with four digits."""
    if value is None:
        return NONE
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None or not math.isfinite(value):
        return NONE
    unit_s, name = time_unit(value)
    return f"{rate(value / unit_s)} {name}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for durations up to ``longest_s`` as (seconds in it, its name)."""
    return next((unit_s, name) for least_s, unit_s, name in TIMES if longest_s >= least_s)


def size(num_bytes: float | None) -> str:
    if num_bytes is None or not math.isfinite(num_bytes):
        return NONE
    power = min(len(BYTES) - 1, int(math.log(max(1.0, abs(num_bytes)), 1024)))
    return f"{rate(num_bytes / 1024**power)} {BYTES[power]}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 core, 2 cores, 3 processes."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def measured(name: str, value: float | None) -> str:
    """Return ``value`` in the unit that ``name`` ends with: ``_s``, ``_bytes``, ``_share``."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return share(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return plain(value)


def print_table(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    rows: Iterable[Sequence[str]],
    last: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print ``rows`` below headings. ``left`` and ``last`` columns are aligned to the left.

    Texts that are too long are folded, but not in ``right`` columns and in those of ``whole``.
    A short row has empty cells at its end.
    """
    table = Table(title=title, title_justify="left")
    for name in (*left, *right, *last):
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*map(printable, row))  # here, so that columns are as wide
    width = 1
    for column in table.columns:
        longest = max(cell_len(str(text)) for text in (column.header, *column.cells))
        width += BORDERS + (longest if column.no_wrap else min(longest, FOLDED))
    console = SafeConsole()
    console.width = max(console.width, COLUMNS, width)
    console.print(table)
