"""The file of a bench: lines of JSON.

The first line describes the machine and the command. Each other line is a measurement or a cell
that cannot run; docs/design/0005-measuring.md describes their form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from framework.commands.bench.grid import Choice, Line
from framework.contracts.span import waiting_share
from framework.errors import ConfigError
from framework.measure.statistics import median, spread_share

SCHEMA = 1


@dataclass(frozen=True)
class Bench:
    header: Line
    lines: list[Line]


@dataclass(frozen=True)
class Measured:
    """A cell with all its repeats."""

    choice: Choice
    rates: Mapping[tuple[int, int], float]  # mean records per second of each (file, repeat)
    waiting: float | None = None  # share of a step that waits for a batch; None without a clock
    illegal: str = ""

    @property
    def runs(self) -> bool:
        return bool(self.rates) and not self.illegal

    @cached_property
    def records_per_s(self) -> float:
        return median(self.rates.values())

    @property
    def spread(self) -> float:
        return spread_share(self.rates.values())

    def relative_to(self, other: "Measured") -> float | None:
        """Return the median ratio within repeats, since a slow minute is slow for both."""
        shared = self.rates.keys() & other.rates.keys()
        if not shared:
            return None
        return median(self.rates[key] / other.rates[key] for key in shared)


def collected(benches: Sequence[Bench]) -> list[Measured]:
    """Return the cells of all files together, in the order of the first file's grid."""
    choices: dict[str, Choice] = {}
    lines: dict[str, list[tuple[int, Line]]] = {}
    for choice in benches[0].header["cells"]:
        choices[choice_key(choice)] = choice
    for number, bench in enumerate(benches):
        for line in bench.lines:
            key = choice_key(line["cell"])
            choices.setdefault(key, line["cell"])
            lines.setdefault(key, []).append((number, line))
    return [_measured(choice, lines[key]) for key, choice in choices.items() if key in lines]


def _measured(choice: Choice, lines: Sequence[tuple[int, Line]]) -> Measured:
    rates: dict[tuple[int, int], float] = {}
    spans: dict[str, float] = {}
    illegal = ""
    for number, line in lines:
        if "illegal" in line:
            illegal = line["illegal"]
            continue
        rates[number, line["repeat"]] = line["records_per_s"]
        for name, seconds in line["spans_s"].items():
            spans[name] = spans.get(name, 0.0) + seconds
    return Measured(choice, rates, waiting_share(spans), illegal)


def choice_key(choice: Choice) -> str:
    """Return the same text for the same choices, whatever their order."""
    return json.dumps(choice, sort_keys=True)


def read(path: Path) -> Bench:
    """Read a file. ConfigError C187 if it is not the file of a bench."""
    lines: list[Line] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        is_sound = _is_sound if lines else _is_header
        if not isinstance(value, dict) or not is_sound(value):
            raise _not_a_bench(path, f"line {number} is not one of a bench")
        lines.append(value)
    if not lines:
        raise _not_a_bench(path, "is empty")
    return Bench(lines[0], lines[1:])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not text"
        if isinstance(error, OSError):
            reason = error.strerror
        raise _not_a_bench(path, f"cannot be read ({reason})") from error


def _not_a_bench(path: Path, what: str) -> ConfigError:
    fix = "give files that 'paceline bench' has written"
    return ConfigError(187, f"compare = {path}", what, fix)


def _is_header(line: Line) -> bool:
    types = {"cells": list, "machine": dict, "versions": dict, "overrides": list, "what": str}
    is_bench = line.get("bench") == SCHEMA and _has(line, types)
    return is_bench and all(map(_is_choice, line["cells"]))


def _is_sound(line: Line) -> bool:
    if not _is_choice(line.get("cell")):
        return False
    if _has(line, {"illegal": str}):
        return True
    types = {"repeat": int, "records_per_s": float, "spans_s": dict}
    if not _has(line, types) or not line["records_per_s"] > 0:
        return False
    return all(type(seconds) in (int, float) for seconds in line["spans_s"].values())


def _has(line: Line, types: Mapping[str, type]) -> bool:
    return all(isinstance(line.get(key), kind) for key, kind in types.items())


def _is_choice(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
