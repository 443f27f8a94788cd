"""The file of a bench: lines of JSON, and the table of its cells.

The first line describes the machine and the command. Each other line is a measurement or a cell
that cannot run; docs/design/0005-measuring.md describes their form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.cli.tables import print_table, rate
from framework.contracts.span import waiting_share
from framework.errors import ConfigError, say
from framework.measure.statistics import median, spread_share

Line = dict[str, Any]
Choice = dict[str, str]  # the swept keys and their values, as typed
SCHEMA = 1
HEADER = {"bench", "cells", "machine", "versions", "what"}
DOES_NOT_RUN = "does not run"


@dataclass(frozen=True)
class Bench:
    header: Line
    lines: list[Line]


@dataclass(frozen=True)
class BenchCell:
    """A cell with all its repeats."""

    choice: Choice
    rates: Mapping[tuple[int, int], float]  # mean records per second of each (file, repeat)
    waiting: float | None = None  # share of a step that waits for a batch; None without a clock
    illegal: str = ""  # why it does not run

    @property
    def runs(self) -> bool:
        return bool(self.rates) and not self.illegal

    @property
    def records_per_s(self) -> float:
        return median(self.rates.values())

    @property
    def spread(self) -> float:
        return spread_share(self.rates.values())

    def relative_to(self, other: "BenchCell") -> float | None:
        """Return the median ratio within repeats, since a slow minute is slow for both."""
        shared = self.rates.keys() & other.rates.keys()
        if not shared:
            return None
        return median(self.rates[key] / other.rates[key] for key in shared)


def label(choice: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "as given"


def named(choice: Mapping[str, str], text: str, separator: str) -> str:
    """Return ``text`` behind the name of the cell, unless ``text`` already contains the name."""
    name = label(choice)
    return text if name in text else f"{name}{separator}{text}"


def figure(value: float | None, pattern: str, unit: str = "") -> str:
    return "" if value is None else format(value, pattern) + unit


def choice_key(choice: Choice) -> tuple[tuple[str, str], ...]:
    """Return the same key for the same choices, whatever their order."""
    return tuple(sorted(choice.items()))


def collected(benches: Sequence[Bench]) -> list[BenchCell]:
    """Return the cells of all files together, in the order of the first file's grid."""
    choices = {choice_key(choice): choice for choice in benches[0].header["cells"]}
    lines: dict[tuple[tuple[str, str], ...], list[tuple[int, Line]]] = {}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            key = choice_key(line["cell"])
            choices.setdefault(key, line["cell"])
            lines.setdefault(key, []).append((number, line))
    cells: list[BenchCell] = []
    for key, choice in choices.items():
        rates: dict[tuple[int, int], float] = {}
        spans: dict[str, float] = {}
        illegal = ""
        for number, line in lines.get(key, ()):
            if "illegal" in line:
                illegal = line["illegal"]
                continue
            rates[number, line["repeat"]] = line["records_per_s"]
            for name, seconds in line["spans_s"].items():
                spans[name] = spans.get(name, 0.0) + seconds
        if key in lines:
            cells.append(BenchCell(choice, rates, waiting_share(spans), illegal))
    return cells


def read_lines(path: Path) -> Bench:
    """Read a file. ConfigError C187 if it is not the file of a bench."""
    try:
        header, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        bench = Bench(header, lines)
        is_bench = header.keys() >= HEADER and header["bench"] == SCHEMA
        if is_bench and all(cell.records_per_s > 0 for cell in collected([bench]) if cell.runs):
            return bench
        what = "is not the file of a bench"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"is not the file of a bench ({error})"
    fix = "give files that 'paceline bench' has written"
    raise ConfigError(187, f"compare = {path}", what, fix)


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
        relative = figure(cell.relative_to(first), "#.3g", "x")
        row += [rate(cell.records_per_s), spread, relative, figure(cell.waiting, ".0%")]
        rows.append(row[: len(keys) + len(heads)])
    print_table(f"bench of {what}", keys, heads, rows)
    for cell in cells:
        if cell.illegal:
            say(named(cell.choice, cell.illegal, ": "))
