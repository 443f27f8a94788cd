"""Print the progress of a bench, its results, and how two files differ."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import final

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from framework.cli.print_table import print_table
from framework.cli.units import plural, rate
from framework.commands.bench.bench_lines import BenchCell, Line, label
from framework.commands.bench.compare_benches import CellVerdict, DecisionRule
from framework.errors import say
from framework.system.safe_text import SafeConsole

DOES_NOT_RUN = "does not run"


@final
class MeasuringProgress:
    """A progress bar on a terminal, else a line for each measurement, on standard error.

    Args:
        cells: The names of the combinations that can run.
        repeats: How often each is measured.
        each_s: About how long a measurement takes.
    """

    def __init__(self, cells: Sequence[str], repeats: int, each_s: float) -> None:
        self._left = dict.fromkeys(cells, repeats)
        self._console = SafeConsole(stderr=True)
        num_measurements = repeats * len(cells)
        words = f"{plural(len(cells), 'combination')}, {plural(repeats, 'repeat')} each: about "
        words += str(timedelta(seconds=round(num_measurements * each_s)))
        self._console.print(words, soft_wrap=True)
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=num_measurements)

    def __enter__(self) -> "MeasuringProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def add(self, line: Line) -> None:
        """Show a measurement. If a cell cannot run, count all of its repeats as done."""
        name = label(line["cell"])
        done = self._left.get(name, 0) if "illegal" in line else 1
        self._left[name] = self._left.get(name, 0) - done
        result = line.get("illegal") or f"{rate(line['records_per_s'])} records/s"
        description = _with_name(line["cell"], result, separator="  ")
        self._bar.update(self._task, advance=done, description=escape(description))
        if not self._console.is_terminal:
            task = self._bar.tasks[0]
            numbered = f"{task.completed:.0f}/{task.total:.0f}  {description}"
            self._console.print(numbered, soft_wrap=True)


def print_bench(cells: Sequence[BenchCell], what: str) -> None:
    """Print a row for each cell, and the reason for each cell that does not run.

    The rates are relative to that of the first cell that runs.
    """
    keys = list(dict.fromkeys(key for cell in cells for key in cell.choice))
    first = next((cell for cell in cells if cell.rates), None)
    heads = ["records/s", "spread", "relative", *(["waiting"] if what == "train" else [])]
    rows: list[list[str]] = []
    for cell in cells:
        row = [cell.choice.get(key, "") for key in keys]
        if not cell.rates or first is None:
            rows.append([*row, DOES_NOT_RUN])
            continue
        spread = f"{cell.spread:.1%}" if len(cell.rates) > 1 else ""
        relative = _figure(cell.relative_to(first), "#.3g", "x")
        row += [rate(cell.records_per_s), spread, relative, _figure(cell.waiting, ".0%")]
        rows.append(row[: len(keys) + len(heads)])
    print_table(f"bench of {what}", keys, heads, rows)
    for cell in cells:
        if cell.illegal:
            say(_with_name(cell.choice, cell.illegal, separator=": "))


def _with_name(choice: Mapping[str, str], text: str, separator: str) -> str:
    """Return ``text`` behind the name of the cell, unless ``text`` already contains the name."""
    name = label(choice)
    return text if name in text else f"{name}{separator}{text}"


def _figure(value: float | None, pattern: str, unit: str = "") -> str:
    return "" if value is None else format(value, pattern) + unit


def print_verdicts(verdicts: Sequence[CellVerdict], what: str) -> None:
    """Print a row for each cell of two benches."""
    keys = list(dict.fromkeys(key for verdict in verdicts for key in verdict.choice))
    rows: list[list[str]] = []
    for verdict in verdicts:
        row = [verdict.choice.get(key, "") for key in keys]
        for cell in (verdict.before, verdict.after):
            if cell is None:
                row.append("")
            elif not cell.runs:
                row.append(DOES_NOT_RUN)
            else:  # such as "1,234 ± 0.5% (5)"
                row.append(f"{rate(cell.records_per_s)} ± {cell.spread:.1%} ({len(cell.rates)})")
        row += [_figure(verdict.change, "+.1%"), _figure(verdict.p, ".2g"), verdict.word]
        rows.append(row)
    heads = ["first", "second", "change", "p"]
    print_table(f"{what}: the second compared with the first", keys, heads, rows, ["verdict"])


def rule_in_words(rule: DecisionRule) -> str:
    return (
        f"Benches differ if their medians are more than {100 * rule.threshold:g} % apart and p is "
        f"at most {rule.level:g}. p is from a Mann-Whitney U test over repeats. "
        "Parentheses show the number of repeats."
    )
