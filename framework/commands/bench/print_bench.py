"""What ``paceline bench`` shows: how far it is, what it measured, and how two files differ."""

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

if TYPE_CHECKING:
    from framework.commands.bench.compare_benches import CellVerdict, Rule  # loads scipy


@final
class MeasuringProgress:
    """A bar on a terminal; a line per measurement where there is none. On standard error."""

    def __init__(self, cells: list[BenchCell], plan: BenchPlan) -> None:
        self._left = {label(cell.choice): plan.repeats for cell in cells if not cell.illegal}
        self._console = Console(stderr=True, highlight=False)
        count = sum(self._left.values())
        many = f"{len(self._left)} combinations" if len(self._left) > 1 else "one combination"
        self._console.print(
            f"{many}, {plan.repeats} x: about {timedelta(seconds=round(length_s(cells, plan)))}",
            soft_wrap=True,
        )
        columns = (
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task("", total=count)

    def __enter__(self) -> "MeasuringProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def tell(self, line: Line) -> None:
        """A measurement more; a combination that cannot run is done with."""
        name = label(line["cell"])
        done = self._left.get(name, 0) if "illegal" in line else 1
        self._left[name] = self._left.get(name, 0) - done
        text = (
            line["illegal"] if "illegal" in line else f"{_speed(line['records_per_s'])} records/s"
        )
        text = text if name in text else f"{name}  {text}"
        self._bar.update(self._task, advance=done, description=escape(text))
        if not self._console.is_terminal:
            at = self._bar.tasks[0]
            self._console.print(
                f"{at.completed:.0f}/{at.total:.0f}  {text}", soft_wrap=True, markup=False
            )


def print_bench(cells: list[Measured], what: str) -> None:
    """A row per combination, relative to the first that runs; below it, why others do not."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell.choice))
    first = next((cell for cell in cells if cell.rates), None)
    table = Table(*keys, title=f"bench of {what}", title_justify="left")
    for name in ("records/s", "spread", "relative", *(["waiting"] if what == "train" else [])):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(
            *(escape(cell.choice.get(key, "")) for key in keys), *_figures(cell, first, what)
        )
    console = wide_console()
    console.print(table)
    for cell in cells:
        if cell.illegal:
            name = label(cell.choice)
            text = cell.illegal if name in cell.illegal else f"{name}: {cell.illegal}"
            console.print(text, soft_wrap=True, markup=False)


def _figures(cell: Measured, first: Measured | None, what: str) -> list[str]:
    if not cell.rates or first is None:
        return ["illegal"]
    relative = cell.relative_to(first)
    shown = [
        _speed(cell.records_per_s),
        f"{cell.spread:.1%}" if len(cell.rates) > 1 else "",
        "" if relative is None else f"{relative:#.3g}x",
    ]
    return (
        [*shown, "" if cell.waiting is None else f"{cell.waiting:.0%}"]
        if what == "train"
        else shown
    )


def _speed(records_per_s: float) -> str:
    return f"{records_per_s:,.0f}" if records_per_s >= 100 else f"{records_per_s:#.3g}"


def wide_console() -> Console:
    console = Console(highlight=False)
    console.width = max(
        console.width, 110
    )  # without a terminal rich assumes 80 columns, and folds every row
    return console


def verdict_table(verdicts: Sequence["CellVerdict"], what: str) -> Table:
    keys = list(dict.fromkeys(key for verdict in verdicts for key in verdict.choice))
    table = Table(*keys, title=f"{what}: the second beside the first", title_justify="left")
    for name in ("first", "second", "change", "p"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for verdict in verdicts:
        change = "" if verdict.change is None else f"{verdict.change:+.1%}"
        p = "" if verdict.p is None else f"{verdict.p:.2g}"
        rates = [_rate(verdict.before), _rate(verdict.after)]
        table.add_row(
            *(escape(verdict.choice.get(key, "")) for key in keys), *rates, change, p, verdict.word
        )
    return table


def _rate(cell: Measured | None) -> str:
    if cell is None:
        return ""
    return (
        f"{_speed(cell.records_per_s)} ± {cell.spread:.1%} ({len(cell.rates)})"
        if cell.runs
        else "does not run"
    )


def rule_in_words(rule: "Rule") -> str:
    return (
        f"a difference: medians more than {100 * rule.threshold:g} % apart, and p at most {rule.level:g} by an exact Mann-Whitney U test over "
        "repeats (their number in parentheses)"
    )
