"""The tables of the page, as rows of cells that know how they are sorted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from framework.commands.report.compare_runs import Relative
from framework.commands.report.recorded_run import RecordedRun, RecordedSpan
from framework.commands.report.units import NONE, measured, plain, rate, seconds, share, times
from framework.contracts.span import IDLE, SPANS

MOST_METRICS = 4


class TableCell(NamedTuple):
    """``text`` is shown, ``details`` below it. ``sort``: a number to sort by; None: there is none, and the row comes last; "": by the text."""

    text: str
    sort: float | str | None = ""
    details: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """``columns``: (name, unit or ""). A cell per column in each row; the first two are the run's number and name."""

    name: str
    title: str
    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[TableCell]]


Make = Callable[[int, RecordedRun], TableCell]


def runs_table(runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative) -> Table:
    """A row per run with the figures it is known by; columns in which no run has any are left out."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.val))[:MOST_METRICS]
    to = "" if compared.base is None else f"time, \N{MULTIPLICATION SIGN} #{compared.base}"
    makers: list[tuple[str, str, Make]] = [
        ("status", "", lambda _, run: TableCell(run.status, mark=run.status)),
        (
            "records/s",
            "",
            lambda _, run: _number(
                run.records_per_s, rate, *([] if run.spread is None else [f"± {share(run.spread)}"])
            ),
        ),
        (to, "", lambda number, _: _number(compared.times[number], times)),
        ("other programs", "cores", _of_resources("usage.others_cpu_cores")),
        ("waiting", "", lambda _, run: _number(run.wait_share, share)),
        ("step", "mean", lambda _, run: _number(run.step_s, seconds)),
        *[(f"val {name}", "", _of_val(name)) for name in metrics],
        ("steps", "", _of_figures("steps")),
        ("repeats", "", _of_figures("repeats")),
        ("wall time", "", _of_figures("wall_s")),
        ("memory", "host, peak", _of_figures("peak_rss_bytes")),
        ("memory", "device, peak", _of_figures("peak_device_bytes")),
    ]
    caption = "±: half the distance between the quartiles of the rates of its reports, windows or repeats, as a share of their median."
    return _table("runs", "Runs", caption, runs, names, [maker for maker in makers if maker[0]])


def spans_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Seconds per step and span, with what quantiles are known."""
    spans = dict.fromkeys([IDLE, *SPANS, *(name for run in runs for name in run.spans)])
    makers: list[tuple[str, str, Make]] = [(name, "", _of_spans(name)) for name in spans]
    makers += [("step", "all", lambda _, run: _number(run.step_s, seconds))]
    makers += [
        ("wait", "of the host, beside", lambda _, run: _span(run.beside.get("wait"), run.step_s))
    ]
    caption = "Mean per step; below it its share of the step, then the median | the 90th percentile, where they were kept."
    return _table("spans", "Spans", caption, runs, names, makers)


def resources_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Stages of reading and use of the machine, as each run's summary names them."""
    keys = dict.fromkeys(name for run in runs for name, value in run.resources.items() if value)
    makers: list[tuple[str, str, Make]] = [(_spoken(key), "", _of_resources(key)) for key in keys]
    caption = "Stages are in thread-seconds: two threads that read for a second make two."
    return _table("resources", "Stages and use of the machine", caption, runs, names, makers)


def _table(
    name: str,
    title: str,
    caption: str,
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    makers: Sequence[tuple[str, str, Make]],
) -> Table:
    """``makers``: name and unit of a column, and what makes its cells. Without rows where no column has a figure."""
    columns = [
        (title, unit, [make(number, run) for number, run in enumerate(runs)])
        for title, unit, make in makers
    ]
    columns = [column for column in columns if any(cell.sort is not None for cell in column[2])]
    heads = [("#", ""), ("run", ""), *[(title, unit) for title, unit, _ in columns]]
    rows = [
        [
            TableCell(str(number), float(number)),
            TableCell(names[number]),
            *[cells[number] for _, _, cells in columns],
        ]
        for number in range(len(runs))
    ]
    return Table(name, title, caption, heads, rows if columns else [])


def _number(value: float | None, word: Callable[[float | None], str], *details: str) -> TableCell:
    known = value is not None and math.isfinite(value)
    return TableCell(word(value), value if known else None, details)


def _of_val(name: str) -> Make:
    return lambda _, run: _number(run.val.get(name), plain, *_best(run, name))


def _best(run: RecordedRun, name: str) -> list[str]:
    """Only where the best was not the last."""
    best = run.best.get(name)
    return [] if best is None or best == run.val.get(name) else [f"best {plain(best)}"]


def _of_figures(name: str) -> Make:
    return lambda _, run: _number(run.figures.get(name), lambda value: measured(name, value))


def _of_resources(name: str) -> Make:
    return lambda _, run: _number(run.resources.get(name), lambda value: measured(name, value))


def _spoken(key: str) -> str:
    """``stages_s.read`` as "read"; ``usage.cpu_share`` as "cpu share"."""
    return (
        key.removeprefix("stages_s.")
        .removeprefix("usage.")
        .removesuffix("_bytes")
        .removesuffix("_share")
        .replace("_", " ")
        .replace(".", " ")
    )


def _of_spans(name: str) -> Make:
    return lambda _, run: _span(run.spans.get(name), run.step_s)


def _span(span: RecordedSpan | None, step_s: float | None) -> TableCell:
    if span is None:
        return TableCell(NONE, None)
    details = [share(span.mean_s / step_s)] if step_s else []
    if span.p50_s is not None and span.p90_s is not None:
        details.append(f"{seconds(span.p50_s)} | {seconds(span.p90_s)}")
    return _number(span.mean_s, seconds, *details)
