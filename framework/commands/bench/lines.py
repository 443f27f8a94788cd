"""The file a bench leaves: JSON lines, the first one about the machine and the command, then one per cell and repeat.

``{"cell": {...}, "repeat": 0, "windows": [...], "records_per_s": ..., "spans_s": {...}, "yardstick_per_s": ...}`` or ``{"cell": {...},
"illegal": "why"}``. ``docs/design/0005-measuring.md`` has the form.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from framework.commands.bench.grid import Choice
from framework.contracts.span import IDLE
from framework.errors import ConfigError
from framework.measure.statistics import median, spread_share

Line = dict[str, Any]
SCHEMA = 1


@dataclass(frozen=True)
class Bench:
    """What one file says. ``header``: its first line."""

    header: Line
    lines: list[Line]


@dataclass(frozen=True)
class Measured:
    """One cell, over all its repeats: the mean records per second of each process that measured it, by (file, repeat)."""

    choice: Choice
    rates: Mapping[tuple[int, int], float]
    waiting: float | None = (
        None  # the share of a step's time in which what computes had no batch; None: no clock ran
    )
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
        return spread_share(self.rates.values())

    def relative_to(self, other: "Measured") -> float | None:
        """The median over the repeats that both have of this rate over the other's; taken inside a repeat, a slow minute is slow for both."""
        shared = sorted(self.rates.keys() & other.rates.keys())
        return median(self.rates[key] / other.rates[key] for key in shared) if shared else None


def collected(benches: Sequence[Bench]) -> list[Measured]:
    """The cells of files taken together, in the order of the first file's grid."""
    choices = [
        *(benches[0].header["cells"]),
        *(line["cell"] for bench in benches for line in bench.lines),
    ]
    found: dict[str, tuple[Choice, list[tuple[int, Line]]]] = {
        _key(choice): (choice, []) for choice in reversed(choices)
    }
    for number, bench in enumerate(benches):
        for line in bench.lines:
            found[_key(line["cell"])][1].append((number, line))
    order = dict.fromkeys(map(_key, choices))
    return [_measured(*found[key]) for key in order if found[key][1]]


def _key(choice: Choice) -> str:
    return json.dumps(choice, sort_keys=True)


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
    return Measured(choice, rates, _waiting(spans), illegal)


def _waiting(spans: Mapping[str, float]) -> float | None:
    """The host's wait; of a device that works beside it, the idle time: a host that waits meanwhile costs nothing."""
    beside, lost = ("wait", IDLE) if IDLE in spans else (IDLE, "wait")
    total_s = sum(seconds for name, seconds in spans.items() if name != beside)
    return spans.get(lost, 0.0) / total_s if total_s else None


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
    """Whether a line has what is read of it."""
    if not isinstance(line, dict):
        return False
    if first:
        wanted = {"cells": list, "machine": dict, "versions": dict, "overrides": list, "what": str}
        return (
            line.get("bench") == SCHEMA
            and _has(line, wanted)
            and all(map(_is_choice, line["cells"]))
        )
    if not _is_choice(line.get("cell")):
        return False
    wanted = {"repeat": int, "records_per_s": float, "spans_s": dict}
    return _has(line, {"illegal": str}) or (_has(line, wanted) and line["records_per_s"] > 0)


def _has(line: Line, wanted: Mapping[str, type]) -> bool:
    return all(isinstance(line.get(key), kind) for key, kind in wanted.items())


def _is_choice(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
