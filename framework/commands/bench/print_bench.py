"""Print the progress of a bench, its results, and how two files differ."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from framework.commands.bench.grid import BenchCell, BenchPlan, Choice, Line, label
from framework.commands.bench.lines import Measured
from framework.commands.print_table import print_table
from framework.commands.report.units import plural, rate

if TYPE_CHECKING:  # this loads scipy
    from framework.commands.bench.compare_benches import CellVerdict, DecisionRule


@final
class MeasuringProgress:
    """A progress bar on a terminal, else a line for each measurement, on standard error."""

    def __init__(self, cells: list[BenchCell], plan: BenchPlan) -> None:
        self._left = {label(cell.choice): plan.repeats for cell in cells if not cell.illegal}
        self._console = Console(stderr=True, highlight=False)
        many = plural(len(self._left), "combination")
        length = timedelta(seconds=round(plan.length_s(len(self._left))))
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
        done = 1
        if "illegal" in line:
            done = self._left.get(name, 0)
        self._left[name] = self._left.get(name, 0) - done
        text = line.get("illegal") or f"{rate(line['records_per_s'])} records/s"
        text = _named(line["cell"], text, "  ")
        self._bar.update(self._task, advance=done, description=escape(text))
        if not self._console.is_terminal:
            task = self._bar.tasks[0]
            text = f"{task.completed:.0f}/{task.total:.0f}  {text}"
            self._console.print(text, soft_wrap=True, markup=False)


def print_bench(cells: list[Measured], what: str) -> None:
    """Print a row for each cell, relative to the first that runs, and why others do not run."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell.choice))
    first = next((cell for cell in cells if cell.rates), None)
    heads = ["records/s", "spread", "relative"]
    if what == "train":
        heads.append("waiting")
    rows: list[list[str]] = []
    for cell in cells:
        choice = [cell.choice.get(key, "") for key in keys]
        figures = ["illegal"]
        if cell.rates and first is not None:
            spread = ""
            if len(cell.rates) > 1:
                spread = f"{cell.spread:.1%}"
            ratio = _figure(cell.relative_to(first), "#.3g", "x")
            figures = [rate(cell.records_per_s), spread, ratio, _figure(cell.waiting, ".0%")]
        rows.append([*choice, *figures[: len(heads)]])
    print_table(f"bench of {what}", keys, heads, rows)
    for cell in cells:
        if cell.illegal:
            print(_named(cell.choice, cell.illegal, ": "))


def _named(choice: Choice, text: str, between: str) -> str:
    """Return ``text`` with the name of its cell, unless it has the name already."""
    name = label(choice)
    return text if name in text else f"{name}{between}{text}"


def _figure(value: float | None, pattern: str, unit: str = "") -> str:
    return "" if value is None else format(value, pattern) + unit


def print_verdicts(verdicts: Sequence["CellVerdict"], what: str) -> None:
    keys = list(dict.fromkeys(key for verdict in verdicts for key in verdict.choice))
    rows: list[list[str]] = []
    for verdict in verdicts:
        choice = [verdict.choice.get(key, "") for key in keys]
        figures = [_figure(verdict.change, "+.1%"), _figure(verdict.p, ".2g")]
        rows.append([*choice, _rate(verdict.before), _rate(verdict.after), *figures, verdict.word])
    heads = ["first", "second", "change", "p"]
    print_table(f"{what}: the second beside the first", keys, heads, rows, ["verdict"])


def _rate(cell: Measured | None) -> str:
    if cell is None:
        return ""
    if not cell.runs:
        return "does not run"
    return f"{rate(cell.records_per_s)} ± {cell.spread:.1%} ({len(cell.rates)})"


def rule_in_words(rule: "DecisionRule") -> str:
    return (
        f"a difference: medians more than {100 * rule.threshold:g} % apart, and p at most "
        f"{rule.level:g} by an exact Mann-Whitney U test over repeats (their number in parentheses)"
    )
