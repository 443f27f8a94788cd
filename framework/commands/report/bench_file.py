"""Read the cells of a file that ``paceline bench`` wrote."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked
from framework.measure.statistics import median
from framework.system.json_values import (
    command_of,
    duration,
    facts_of,
    lines_of,
    numbers,
    parsed,
    positive,
    shown,
)

Line = dict[str, Any]


def is_bench(path: Path) -> bool:
    """Return whether ``path`` begins as a bench file does."""
    try:
        with open(path, "rb") as file:
            first = parsed(file.readline(1 << 20))
    except OSError:
        return False
    return "cell" in first or ("machine" in first and "command" in first)


def read_bench(path: Path) -> list[RecordedRun]:
    """Return the cells in the order of the grid, those that were not measured included."""
    lines = list(lines_of(path))
    header: Line = next((line for line in lines if line and "cell" not in line), {})
    notes: list[str] = []
    if header.get("what"):
        notes.append(f"bench what={shown(header['what'])}")
    num_bad = lines.count({})
    if num_bad:
        notes.append(f"{num_bad:,} lines of the file are damaged and left out")
    planned = header.get("cells")
    cells: dict[str, list[Line]] = {}
    if isinstance(planned, list):
        cells = {_key(choice): [] for choice in planned if isinstance(choice, dict)}
    for line in lines:
        if isinstance(line.get("cell"), dict):
            cells.setdefault(_key(line["cell"]), []).append(line)
    return [_cell(path, header, json.loads(key), cells[key], notes) for key in cells]


def _key(choice: Line) -> str:
    """Return the same text for the same choices, whatever their order."""
    return json.dumps(choice, sort_keys=True)


def _cell(
    path: Path, header: Line, choice: Line, lines: list[Line], notes: list[str]
) -> RecordedRun:
    windows: list[float] = []
    repeats: list[float] = []
    rounds: dict[int, float] = {}
    for place, line in enumerate(lines):
        windows += _windows(line)
        rate = positive(line.get("records_per_s"))
        if rate is not None:  # every cell is measured once in each round of the bench
            repeats.append(rate)
            repeat = duration(line.get("repeat"))
            rounds[place if repeat is None else int(repeat)] = rate
    status, reason = _status(lines, len(repeats))
    spans, beside = stacked(_mean_spans(line.get("spans_s") for line in lines))
    few = len(repeats) < 4  # too few for quartiles
    return RecordedRun(
        name=shown(path.name),
        place=shown(str(path)),
        status=status,
        reason=reason,
        kind="cell",
        what=shown(header.get("what")),
        choices={shown(key): shown(value) for key, value in choice.items()},
        config={shown(key): value for key, value in choice.items()},
        facts=facts_of(header),
        command=command_of(header.get("command")),
        started=shown(header.get("started", "")),
        records_per_s=median(repeats) if repeats else None,
        rates=tuple((few and windows) or repeats),
        rounds=rounds,
        spans=spans,
        beside=beside,
        figures={"repeats": len(repeats)},
        notes=tuple(notes),
    )


def _status(lines: list[Line], num_rates: int) -> tuple[str, str]:
    """Return status and reason. ``impossible``: the combination cannot run."""
    illegal = [shown(line["illegal"]) for line in lines if line.get("illegal")]
    if illegal:
        return "impossible", illegal[0]
    if not lines:
        return "unfinished", "not measured: the bench was stopped, or is running"
    if not num_rates:
        return "failed", "no rate is recorded"
    return "finished", ""


def _windows(line: Line) -> list[float]:
    values = line.get("windows")
    if not isinstance(values, list):
        return []
    return [rate for value in values if (rate := positive(value)) is not None]


def _mean_spans(repeats: Iterable[Any]) -> dict[str, RecordedSpan]:
    """Return the mean of each span over the repeats that have any."""
    known = [spans for repeat in repeats if (spans := numbers(repeat, duration))]
    names = dict.fromkeys(name for spans in known for name in spans)
    return {
        shown(name): RecordedSpan(fmean(spans.get(name, 0.0) for spans in known)) for name in names
    }
