"""The file a bench leaves: JSON lines, the first one about the machine and the command, then one per cell and repeat.

``{"cell": {...}, "repeat": 0, "windows": [...], "records_per_s": ..., "spans_s": {...}, "yardstick_per_s": ...}`` or ``{"cell": {...},
"illegal": "why"}``. ``docs/design/0005-measuring.md`` has the form.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from framework.bench.grid import Choice
from framework.errors import ConfigError

Line = dict[str, Any]
SCHEMA = 1


@dataclass(frozen=True)
class Bench:
    """What one file says. ``header``: its first line."""

    header: Line
    lines: list[Line]


@dataclass(frozen=True)
class Measured:
    """One cell, over all its repeats: the median window's records per second of each process that measured it, by (file, repeat)."""

    choice: Choice
    rates: Mapping[tuple[int, int], float]
    waiting: float = 0.0  # the share of a step's time in which no batch was ready
    illegal: str = ""

    @property
    def runs(self) -> bool:
        """False also where it failed after some repeats."""
        return bool(self.rates) and not self.illegal

    @cached_property
    def records_per_s(self) -> float:
        """The median repeat's."""
        return median(self.rates.values())

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles of the repeats, as a share of the median."""
        if len(self.rates) < 2:
            return 0.0
        low, _, high = quantiles(self.rates.values(), n=4, method="inclusive")
        return (high - low) / 2 / self.records_per_s

    def relative_to(self, other: "Measured") -> float | None:
        """The median over the repeats that both have of this rate over the other's; taken inside a repeat, a slow minute is slow for both."""
        shared = sorted(self.rates.keys() & other.rates.keys())
        return median(self.rates[key] / other.rates[key] for key in shared) if shared else None


def collected(benches: Sequence[Bench]) -> list[Measured]:
    """The cells of files taken together, in the order of the first file's grid."""
    lines: dict[str, list[tuple[int, Line]]] = {json.dumps(choice): [] for choice in benches[0].header["cells"]}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            lines.setdefault(json.dumps(line["cell"]), []).append((number, line))
    return [_measured(json.loads(key), found) for key, found in lines.items() if found]


def _measured(choice: Choice, found: Iterable[tuple[int, Line]]) -> Measured:
    rates: dict[tuple[int, int], float] = {}
    spans: dict[str, float] = {}
    illegal = ""
    for number, line in found:
        if "illegal" in line:
            illegal = line["illegal"]
            continue
        rates[number, line["repeat"]] = line["records_per_s"]
        for name, seconds in line["spans_s"].items():
            spans[name] = spans.get(name, 0.0) + seconds
    total_s = sum(seconds for name, seconds in spans.items() if name != "idle")  # the device's, beside the others
    return Measured(choice, rates, spans.get("wait", 0.0) / total_s if total_s else 0.0, illegal)


def read(path: Path) -> Bench:
    """ConfigError C187 for what is no such file."""
    fix = "give files that 'paceline bench' has written"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(187, f"compare = {path}", f"cannot be read ({reason})", fix) from error
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _parsed(line)
        if not _is_sound(found, first=number == 1):
            raise ConfigError(187, f"compare = {path}", f"line {number} is none of a bench's", fix)
        lines.append(found)
    if not lines:
        raise ConfigError(187, f"compare = {path}", "is empty", fix)
    return Bench(lines[0], lines[1:])


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_sound(line: Any, first: bool) -> bool:
    if not isinstance(line, dict):
        return False
    if first:
        return line.get("bench") == SCHEMA and all(key in line for key in ("cells", "machine", "versions", "overrides", "what"))
    measured = {"repeat", "windows", "records_per_s", "spans_s"} <= line.keys() and line["records_per_s"] > 0
    return "cell" in line and ("illegal" in line or measured)
