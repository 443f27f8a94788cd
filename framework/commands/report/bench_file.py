"""Read the cells of a file that ``paceline bench`` wrote."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from framework.commands.bench.grid import Line
from framework.commands.bench.lines import choice_key
from framework.commands.report.json_values import (
    command_of,
    duration,
    facts_of,
    lines_of,
    numbers,
    parsed,
    positive,
    shown,
)
from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked
from framework.measure.statistics import median


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
        cells = {choice_key(choice): [] for choice in planned if isinstance(choice, dict)}
    for line in lines:
        if isinstance(line.get("cell"), dict):
            cells.setdefault(choice_key(line["cell"]), []).append(line)
    return [_cell(path, header, json.loads(key), cells[key], notes) for key in cells]


def _cell(
    path: Path, header: Line, choice: Line, lines: list[Line], notes: list[str]
) -> RecordedRun:
    windows = [rate for line in lines for rate in _windows(line)]
    rounds = [(place, rate) for place, rate in enumerate(map(_rate, lines)) if rate is not None]
    rates = [rate for _, rate in rounds]
    status, reason = _status(lines, len(rounds))
    spans, beside = stacked(_mean_spans(line.get("spans_s") for line in lines))
    if len(rates) < 4:  # too few for quartiles
        rates = windows or rates
    return RecordedRun(
        name=shown(path.name),
        place=shown(str(path)),
        status=status,
        reason=reason,
        kind="cell",
        what=shown(header.get("what") or "train"),
        choices={shown(key): shown(value) for key, value in choice.items()},
        config={shown(key): value for key, value in choice.items()},
        facts=facts_of(header),
        command=command_of(header.get("command")),
        started=shown(header.get("started", "")),
        records_per_s=median(rate for _, rate in rounds) if rounds else None,
        rates=tuple(rates),
        rounds={_round(lines[place], place): rate for place, rate in rounds},
        spans=spans,
        beside=beside,
        figures={"repeats": len(rounds)},
        notes=tuple(notes),
    )


def _rate(line: Line) -> float | None:
    windows = _windows(line)
    return positive(line.get("records_per_s")) or (fmean(windows) if windows else None)


def _round(line: Line, place: int) -> int:
    """Return the round of the bench. Every cell is measured once in each round."""
    repeat = duration(line.get("repeat"))
    return place if repeat is None else int(repeat)


def _status(lines: list[Line], num_rates: int) -> tuple[str, str]:
    """Return status and reason. ``impossible``: refused; ``failed``: no repeat ended."""
    illegal = [shown(line["illegal"]) for line in lines if line.get("illegal")]
    failed = [shown(line["failed"]) for line in lines if line.get("failed")]
    if illegal:
        return "impossible", illegal[0]
    if not lines:
        return "unfinished", "not measured: the bench was stopped, or is running"
    if not num_rates:
        return "failed", (failed or ["no rate is recorded"])[0]
    if failed:
        return "finished", f"{len(failed)} of {len(lines)} repeats failed: {failed[0]}"
    return "finished", ""


def _windows(line: Line) -> list[float]:
    """Return the rates in the windows of a measurement."""
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
