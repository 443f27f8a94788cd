"""The tables of the page, as rows of cells that can be sorted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from framework.cli.units import (
    NONE,
    measured,
    plain,
    rate,
    seconds,
    share,
    size,
    times,
)
from framework.commands.report.compare_runs import Relative
from framework.commands.report.recorded_run import RecordedRecord, RecordedRun, RecordedSpan
from framework.contracts.span import ALL_SPANS, IDLE

MOST_METRICS = 4


class TableCell(NamedTuple):
    """A cell: a text with small lines of details below it."""

    text: str
    sort: float | str | None = ""  # None: in the last rows; "": by the text
    details: tuple[str, ...] = ()
    mark: str = ""  # the style of the text


@dataclass(frozen=True)
class Table:
    """A table of the page. Its first two columns are the number and the name of each run."""

    name: str  # its id on the page
    title: str
    caption: str
    columns: Sequence[tuple[str, str]]  # (name, unit or "")
    rows: Sequence[Sequence[TableCell]]


Column = tuple[str, str, list[TableCell]]  # name, unit or "", a cell for each run


def runs_table(runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative) -> Table:
    figures = [run.figures for run in runs]
    resources = [run.resources for run in runs]
    times_name = f"time, \N{MULTIPLICATION SIGN} #{compared.base}"
    metrics = list(dict.fromkeys(name for run in runs for name in run.val))[:MOST_METRICS]
    columns_of_metrics: list[Column] = []
    for metric in metrics:
        cells = [_number(run.val.get(metric), plain, run.best_of(metric)) for run in runs]
        columns_of_metrics.append((f"val {metric}", "", cells))
    columns = [
        ("status", "", [TableCell(run.status, mark=run.status) for run in runs]),
        ("records/s", "", [_number(run.records_per_s, rate, run.spread) for run in runs]),
        (times_name, "", [_number(time, times) for time in compared.times]),
        _measured(resources, "usage.others_cpu_cores", "other programs", "cores"),
        ("waiting", "", [_number(run.wait_share, share) for run in runs]),
        ("step", "mean", [_number(run.step_s, seconds) for run in runs]),
        *columns_of_metrics,
        _measured(figures, "steps", "steps"),
        _measured(figures, "repeats", "repeats"),
        _measured(figures, "wall_s", "wall time"),
        _measured(figures, "peak_rss_bytes", "memory", "host, peak"),
        _measured(figures, "peak_device_bytes", "memory", "device, peak"),
    ]
    caption = (
        "±: half the distance between the quartiles of the rates of its reports, windows or "
        "repeats, as a share of their median."
    )
    return _table("runs", "Runs", caption, names, columns)


def spans_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the seconds per step of each span."""
    spans = dict.fromkeys([IDLE, *ALL_SPANS, *(name for run in runs for name in run.spans)])
    columns = [
        *((name, "", [_span(run.spans.get(name), run) for run in runs]) for name in spans),
        ("step", "all", [_number(run.step_s, seconds) for run in runs]),
        ("wait", "of the host, beside", [_span(run.beside.get("wait"), run) for run in runs]),
    ]
    caption = (
        "Mean per step; below it its share of the step, then the median | the 90th percentile, "
        "where they were kept."
    )
    return _table("spans", "Spans", caption, names, columns)


def ranks_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the seconds per step of each span on the slowest rank."""
    spans = dict.fromkeys(name for run in runs if run.ranks for name in run.ranks.spans)
    columns: list[Column] = [
        ("ranks", "", [_number_of_ranks(run) for run in runs]),
        *((name, "", [_rank_span(run, name) for run in runs]) for name in spans),
    ]
    caption = (
        "Mean per step on the rank that took longest; below it this rank, then the least and the "
        "median of all ranks. exchange: it waited for other ranks, so the slowest rank has the "
        "shortest."
    )
    return _table("ranks", "Ranks", caption, names, columns)


def _number_of_ranks(run: RecordedRun) -> TableCell:
    if run.ranks is None:
        return TableCell(NONE, None)
    return _number(run.ranks.num_ranks, plain)


def _rank_span(run: RecordedRun, name: str) -> TableCell:
    span = run.ranks and run.ranks.spans.get(name)
    if not span:
        return TableCell(NONE, None)
    others = f"{seconds(span.min_s)} | {seconds(span.median_s)}"
    return _number(span.max_s, seconds, f"rank {span.rank}", others)


def resources_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the stages of reading and the use of the machine."""
    resources = [run.resources for run in runs]
    columns: list[Column] = []
    for key in dict.fromkeys(name for of in resources for name, value in of.items() if value):
        name = key.removeprefix("stages_s.").removeprefix("usage.")
        name = name.removesuffix("_bytes").removesuffix("_share")
        columns.append(_measured(resources, key, name.replace("_", " ").replace(".", " ")))
    caption = "Stages are in thread-seconds: two threads that read for a second make two."
    return _table("resources", "Stages and use of the machine", caption, names, columns)


def slow_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the slow records of all runs."""
    rows: list[list[TableCell]] = []
    for number, (run, run_name) in enumerate(zip(runs, names, strict=True)):
        head = [TableCell(str(number), float(number)), TableCell(run_name)]
        rows += [[*head, *_slow_cells(record)] for record in run.slow]
    units = {"time": "mean", "reads": "when it was slow", "size": "as stored"}
    columns = ("#", "run", "record", "time", "reads", "size", "rank")
    caption = "Records that took at least 8 times as long to read as the usual one."
    heads = [(name, units.get(name, "")) for name in columns]
    return Table("slow", "Slow records", caption, heads, rows)


def _slow_cells(record: RecordedRecord) -> list[TableCell]:
    return [
        TableCell(record.name),
        _number(record.mean_s, seconds),
        _number(record.num_reads, plain),
        _number(record.size_bytes, size),
        _number(record.rank, plain),
    ]


def _table(
    name: str, title: str, caption: str, names: Sequence[str], columns: Sequence[Column]
) -> Table:
    """Leave out columns in which no run has a figure, and all rows if no column is left."""
    known = [column for column in columns if any(cell.sort is not None for cell in column[2])]
    if not known:
        names = []
    heads = [("#", ""), ("run", ""), *((head, unit) for head, unit, _ in known)]
    rows: list[list[TableCell]] = []
    for number, run_name in enumerate(names):
        cells = [cells[number] for _, _, cells in known]
        rows.append([TableCell(str(number), float(number)), TableCell(run_name), *cells])
    return Table(name, title, caption, heads, rows)


def _number(value: float | None, word: Callable[[float | None], str], *details: str) -> TableCell:
    sort = value
    if sort is not None and not math.isfinite(sort):
        sort = None
    return TableCell(word(value), sort, tuple(filter(None, details)))


def _measured(tables: Sequence[Mapping[str, float]], key: str, name: str, unit: str = "") -> Column:
    return name, unit, [_number(table.get(key), partial(measured, key)) for table in tables]


def _span(span: RecordedSpan | None, run: RecordedRun) -> TableCell:
    if span is None:
        return TableCell(NONE, None)
    details = [share(span.mean_s / (run.step_s or 1.0))]
    if span.p50_s is not None and span.p90_s is not None:
        details.append(f"{seconds(span.p50_s)} | {seconds(span.p90_s)}")
    return _number(span.mean_s, seconds, *details)
