"""Print the progress of a bench, its results, and how two files differ."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from framework.commands.bench.grid import BenchCell, BenchPlan, label
from framework.commands.bench.lines import Line, Measured
from framework.commands.bench.measure_cell import length_s

if TYPE_CHECKING:  # this loads scipy
    from framework.commands.bench.compare_benches import CellVerdict, Rule


@final
class MeasuringProgress:
    """A progress bar on a terminal, else a line for each measurement, on standard error."""

    def __init__(self, cells: list[BenchCell], plan: BenchPlan) -> None:
        self._left = {label(cell.choice): plan.repeats for cell in cells if not cell.illegal}
        self._console = Console(stderr=True, highlight=False)
        many = f"{len(self._left)} combinations" if len(self._left) > 1 else "one combination"
        length = timedelta(seconds=round(length_s(cells, plan)))
        self._console.print(f"{many}, {plan.repeats} x: about {length}", soft_wrap=True)
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=sum(self._left.values()))

    def __enter__(self) -> "MeasuringProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def add(self, line: Line) -> None:
        """Show a measurement. A cell that cannot run completes all its repeats."""
        name = label(line["cell"])
        left = self._left.get(name, 0)
        if "illegal" in line:
            done = left
            text = line["illegal"]
        else:
            done = 1
            text = f"{_speed(line['records_per_s'])} records/s"
        self._left[name] = left - done
        text = text if name in text else f"{name}  {text}"
        self._bar.update(self._task, advance=done, description=escape(text))
        if not self._console.is_terminal:
            task = self._bar.tasks[0]
            text = f"{task.completed:.0f}/{task.total:.0f}  {text}"
            self._console.print(text, soft_wrap=True, markup=False)


def print_bench(cells: list[Measured], what: str) -> None:
    """Print a row for each cell, relative to the first that runs, and why others do not run."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell.choice))
    first = next((cell for cell in cells if cell.rates), None)
    table = Table(*keys, title=f"bench of {what}", title_justify="left")
    for name in ("records/s", "spread", "relative"):
        table.add_column(name, justify="right")
    if what == "train":
        table.add_column("waiting", justify="right")
    console = wide_console()
    for cell in cells:
        choice = [escape(cell.choice.get(key, "")) for key in keys]
        if not cell.rates or first is None:
            table.add_row(*choice, "illegal")
            continue
        spread = f"{cell.spread:.1%}" if len(cell.rates) > 1 else ""
        relative = cell.relative_to(first)
        ratio = "" if relative is None else f"{relative:#.3g}x"
        figures = [_speed(cell.records_per_s), spread, ratio]
        if what == "train":
            figures.append(_figure(cell.waiting, ".0%"))
        table.add_row(*choice, *figures)
    console.print(table)
    for cell in cells:
        if cell.illegal:
            name = label(cell.choice)
            text = cell.illegal if name in cell.illegal else f"{name}: {cell.illegal}"
            console.print(text, soft_wrap=True, markup=False)


def _figure(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def _speed(records_per_s: float) -> str:
    return f"{records_per_s:,.0f}" if records_per_s >= 100 else f"{records_per_s:#.3g}"


def wide_console() -> Console:
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # without a terminal Rich wraps rows at 80 columns
    return console


def verdict_table(verdicts: Sequence["CellVerdict"], what: str) -> Table:
    keys = list(dict.fromkeys(key for verdict in verdicts for key in verdict.choice))
    table = Table(*keys, title=f"{what}: the second beside the first", title_justify="left")
    for name in ("first", "second", "change", "p"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for verdict in verdicts:
        table.add_row(
            *(escape(verdict.choice.get(key, "")) for key in keys),
            _rate(verdict.before),
            _rate(verdict.after),
            _figure(verdict.change, "+.1%"),
            _figure(verdict.p, ".2g"),
            verdict.word,
        )
    return table


def _rate(cell: Measured | None) -> str:
    if cell is None:
        return ""
    if not cell.runs:
        return "does not run"
    return f"{_speed(cell.records_per_s)} ± {cell.spread:.1%} ({len(cell.rates)})"


def rule_in_words(rule: "Rule") -> str:
    return (
        f"a difference: medians more than {100 * rule.threshold:g} % apart, and p at most "
        f"{rule.level:g} by an exact Mann-Whitney U test over repeats (their number in parentheses)"
    )
