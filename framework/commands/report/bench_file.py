"""A file of ``paceline bench`` -> a Run for each of its cells."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from framework.commands.report.json_values import (
    command_of,
    duration,
    facts_of,
    mapping,
    positive,
    shown,
)
from framework.commands.report.json_values import number as number_of
from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked
from framework.measure.statistics import median

Line = dict[str, Any]


def read_lines(path: Path) -> tuple[list[Line], int]:
    """The objects in ``path``, and how many of its lines are not whole."""
    found: list[Line] = []
    num_bad = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                found.append(mapping(json.loads(line)))
            except (ValueError, RecursionError):
                num_bad += 1
    return [line for line in found if line], num_bad


def is_bench(path: Path) -> bool:
    """Whether ``path`` begins as a bench file does."""
    try:
        with open(path, "rb") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and (
        "cell" in first or ("machine" in first and "command" in first)
    )


def read_bench(path: Path) -> list[RecordedRun]:
    """A Run for each cell, in the order of the grid; of a bench that was stopped, also those that were not measured."""
    lines, num_bad = read_lines(path)
    header = next((line for line in lines if "cell" not in line), {})
    planned = header.get("cells")
    cells: dict[str, list[Line]] = (
        {_name(cell): [] for cell in planned if isinstance(cell, dict)}
        if isinstance(planned, list)
        else {}
    )
    for line in lines:
        if isinstance(line.get("cell"), dict):
            cells.setdefault(_name(line["cell"]), []).append(line)
    notes = [f"{num_bad:,} lines of the file are not whole and left out"] if num_bad else []
    return [
        _cell(path, header, json.loads(name), measured, notes) for name, measured in cells.items()
    ]


def _name(cell: Line) -> str:
    return json.dumps(cell, sort_keys=True)


def _cell(path: Path, header: Line, cell: Line, lines: list[Line], notes: list[str]) -> RecordedRun:
    rounds = {
        number: rate for number, line in enumerate(lines) if (rate := _rate(line)) is not None
    }
    rates = list(rounds.values())
    windows = [rate for line in lines for rate in _positives(line.get("windows"))]
    status, reason = _status(lines, len(rates))
    what = [f"bench what={shown(header['what'])}"] if header.get("what") else []
    spans, beside = stacked(_spans([_durations(line.get("spans_s")) for line in lines]))
    return RecordedRun(
        name=shown(path.name),
        place=shown(str(path)),
        status=status,
        reason=reason,
        kind="cell",
        what=shown(header.get("what") or "train"),
        choices={shown(key): shown(value) for key, value in cell.items()},
        config={shown(key): value for key, value in cell.items()},
        facts=facts_of(header),
        command=command_of(header.get("command")),
        started=shown(header.get("started", "")),
        records_per_s=median(rates) if rates else None,
        rates=tuple(rates if len(rates) >= 4 else windows or rates),
        rounds={_round(lines[number], number): rate for number, rate in rounds.items()},
        spans=spans,
        beside=beside,
        figures={"repeats": len(rates)},
        notes=(*what, *notes),
    )


def _round(line: Line, number: int) -> int:
    """Of the bench; every cell is measured once in each."""
    told = number_of(line.get("repeat"))
    return number if told is None else int(told)


def _status(lines: list[Line], num_rates: int) -> tuple[str, str]:
    """``impossible`` where the cell was refused; ``failed`` where no repeat came to an end."""
    illegal = [shown(line["illegal"]) for line in lines if line.get("illegal")]
    failed = [shown(line["failed"]) for line in lines if line.get("failed")]
    if illegal:
        return "impossible", illegal[0]
    if not lines:
        return "unfinished", "not measured: the bench was stopped, or is running"
    if not num_rates:
        return "failed", failed[0] if failed else "no rate is recorded"
    return (
        "finished",
        f"{len(failed)} of {len(lines)} repeats failed: {failed[0]}" if failed else "",
    )


def _rate(line: Line) -> float | None:
    windows = _positives(line.get("windows"))
    return positive(line.get("records_per_s")) or (fmean(windows) if windows else None)


def _positives(values: Any) -> list[float]:
    found = [positive(value) for value in values] if isinstance(values, list) else []
    return [value for value in found if value is not None]


def _durations(value: Any) -> dict[str, float]:
    found = {name: duration(seconds) for name, seconds in mapping(value).items()}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def _spans(repeats: Iterable[Mapping[str, float]]) -> dict[str, RecordedSpan]:
    """The mean over the repeats."""
    known = [spans for spans in repeats if spans]
    names = dict.fromkeys(name for spans in known for name in spans)
    return {
        shown(name): RecordedSpan(fmean(spans.get(name, 0.0) for spans in known)) for name in names
    }
