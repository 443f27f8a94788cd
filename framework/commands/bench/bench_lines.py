"""The file of a bench: lines of JSON.

The first line describes the machine and the command. Each other line is a measurement or a cell
that cannot run; docs/design/0005-measuring.md describes their form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.contracts.span import waiting_share
from framework.errors import ConfigError
from framework.measure.statistics import median, spread_share

Line = dict[str, Any]
Choice = dict[str, str]  # the swept keys and their values, as typed
SCHEMA = 1
HEADER = {"bench", "cells", "machine", "versions", "what"}


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
        if key not in lines:
            continue
        rates: dict[tuple[int, int], float] = {}
        spans: dict[str, float] = {}
        illegal = ""
        for number, line in lines[key]:
            if "illegal" in line:
                illegal = line["illegal"]
                continue
            rates[number, line["repeat"]] = line["records_per_s"]
            for name, seconds in line["spans_s"].items():
                spans[name] = spans.get(name, 0.0) + seconds
        cells.append(BenchCell(choice, rates, waiting_share(spans), illegal))
    return cells


def read_lines(path: Path) -> Bench:
    """Read a file. ConfigError C187 if it is not the file of a bench."""
    lines: list[Line] = []
    what = "is empty"
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            what = f"line {number} is not one of a bench"
            lines.append(json.loads(line))
            if number == 1 and not (lines[0].keys() >= HEADER and lines[0]["bench"] == SCHEMA):
                raise ValueError
        bench = Bench(lines[0], lines[1:])
        what = "is not the file of a bench"
        for cell in collected([bench]):
            if cell.runs and not cell.records_per_s > 0:
                raise ValueError
    except OSError as error:
        raise _not_a_bench(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise _not_a_bench(path, "cannot be read (not text)") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _not_a_bench(path, what) from error
    return bench


def _not_a_bench(path: Path, what: str) -> ConfigError:
    fix = "give files that 'paceline bench' has written"
    return ConfigError(187, f"compare = {path}", what, fix)
