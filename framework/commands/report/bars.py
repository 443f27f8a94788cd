"""Charts of bars, one or a stack for each run: relative times, and the spans of a step. A name stands above its bar, not beside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from framework.commands.report.chart import DASHES, EDGE, WIDTH, Chart, finished, fitted, legend
from framework.commands.report.compare_runs import Relative, looks
from framework.commands.report.palette import INK, MUTED, OF_RUN, PAPER, of_run, of_span
from framework.commands.report.recorded_run import RecordedRun
from framework.commands.report.units import rate, seconds, share, time_unit, times
from framework.contracts.span import IDLE, SPANS

ROW = 33.0  # units: the height of a name and its bar
MIDDLE, THICK = 0.73, 0.36  # of a bar, in rows
LETTER = 6.1  # units: the mean width of a letter of size 10


def _bars(num_rows: int, top: float, unit: str) -> tuple[Figure, Axes]:
    """Axes with a row a unit high for each run, the first on top; ``top``: units kept free above."""
    bottom = 34.0
    height = top + num_rows * ROW + bottom
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes(
        (EDGE / WIDTH, bottom / height, 1 - 2 * EDGE / WIDTH, num_rows * ROW / height)
    )
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)  # its lines would cross the names
    axes.tick_params(length=3)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(unit)
    return figure, axes


def _line(axes: Axes, row: int, left: str, right: str) -> None:
    """Above a bar: the run's name, and at the other end its figures."""
    room = int((WIDTH - 2 * EDGE - len(right) * LETTER) / LETTER) - 1
    axes.text(0, row + 0.44, fitted(left, max(8, room)), transform=axes.get_yaxis_transform())
    axes.text(1, row + 0.44, right, transform=axes.get_yaxis_transform(), ha="right", color=MUTED)


def spans_chart(runs: Sequence[RecordedRun], names: Sequence[str], png: bool) -> Chart | None:
    """Seconds of a mean step, a piece for each span."""
    longest_s = max((run.step_s or 0.0 for run in runs), default=0.0)
    if not longest_s:
        return None
    size, unit = time_unit(longest_s)
    spans = [
        name
        for name in dict.fromkeys([IDLE, *SPANS, *(name for run in runs for name in run.spans)])
        if _any(runs, name)
    ]
    figure, axes = _bars(len(runs), 22, f"{unit} per step")
    for row, run in enumerate(runs):
        _line(axes, row, names[row], _spans_words(run))
    tips: dict[str, str] = {}
    ends_s = np.zeros(len(runs))
    handles = [_pieces(axes, runs, names, span, size, ends_s, tips) for span in spans]
    axes.set_xlim(0, 1.005 * longest_s / size)
    legend(figure, handles, spans, at_top=True, columns=len(spans))
    caption = "The mean step of training, from left to right as it goes; wait: no batch was ready."
    if any(run.what != "train" for run in runs):
        caption = "The mean step of what the bench measured, which may be less than training."
    if IDLE in spans:
        caption += (
            " idle: a device had nothing to do; the host's wait beside its work is in the table."
        )
    return finished("spans", "Where the step time goes", caption, figure, tips, png)


def _pieces(
    axes: Axes,
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    span: str,
    size: float,
    ends_s: np.ndarray,
    tips: dict[str, str],
) -> Any:
    """One span of all runs, from where the bars end so far; moves ``ends_s`` on. Returns what a legend shows."""
    rows = np.array([row for row, run in enumerate(runs) if span in run.spans])
    widths_s = np.array([runs[row].spans[span].mean_s for row in rows])
    look: dict[str, Any] = {
        "height": THICK,
        "color": of_span(span),
        "edgecolor": PAPER,
        "linewidth": 0.5,
    }
    drawn = axes.barh(rows + MIDDLE, widths_s / size, left=ends_s[rows] / size, **look)
    for row, width_s, piece in zip(rows.tolist(), widths_s.tolist(), drawn.patches, strict=True):
        piece.set_gid(key := f"{span}-{row}")
        tips[key] = (
            f"{names[row]}: {span} {seconds(width_s)}, {share(width_s / (runs[row].step_s or 1.0))}"
        )
    ends_s[rows] += widths_s
    return drawn


def _any(runs: Sequence[RecordedRun], name: str) -> bool:
    return any(name in run.spans for run in runs)


def _spans_words(run: RecordedRun) -> str:
    if run.step_s is None:
        return run.status
    wait = (
        f", {share(run.wait_share)} {IDLE if IDLE in run.spans else 'wait'}"
        if run.wait_share is not None
        else ""
    )
    return f"{seconds(run.step_s)}{wait}" + ("" if run.is_whole else f", {run.status}")


def times_chart(
    runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative, png: bool
) -> Chart | None:
    """Time per record beside the base's."""
    if compared.base is None or len(runs) < 2:
        return None
    figure, axes = _bars(
        len(runs), 6, f"time per record, as a multiple of {fitted(names[compared.base], 34)}"
    )
    each, _ = looks(runs, names, len(OF_RUN), len(DASHES))
    tips: dict[str, str] = {}
    base_rate = runs[compared.base].records_per_s or 0.0
    greatest = widest = 1.0
    for row, (run, value) in enumerate(zip(runs, compared.times, strict=True)):
        _line(axes, row, names[row], _times_words(run, value))
        if value is None:
            continue
        bar = axes.barh(
            row + MIDDLE,
            value,
            height=THICK,
            color=of_run(each[row].color),
            alpha=1.0 if run.is_whole else 0.45,
        )
        bar.patches[0].set_gid(key := f"time-{row}")
        tips[key] = f"{names[row]}: {value:.3f} of the time, {1 / value:.3f} of the speed"
        greatest, widest = max(greatest, value), max(widest, value)
        if run.quartiles is not None and run.records_per_s:
            ends = [base_rate / end for end in reversed(run.quartiles)]
            axes.plot(ends, [row + MIDDLE] * 2, color=INK, linewidth=1.3, solid_capstyle="butt")
            widest = max(widest, ends[1])
    axes.set_xlim(
        0, 1.02 * min(widest, 1.3 * greatest)
    )  # a run that hung for a while must not make all bars short
    rows = np.arange(len(runs))
    axes.vlines([1.0] * len(runs), rows + 0.53, rows + 0.95, color=INK, linewidth=1.2)
    caption = (
        f"1 is {names[compared.base]}, the upright line; shorter is faster. The thin line on a bar spans the middle half of its reports, "
        "windows or repeats. What did not finish is pale."
    )
    return finished("times", "Relative time", caption, figure, tips, png)


def _times_words(run: RecordedRun, value: float | None) -> str:
    if value is None:
        return run.status
    return f"{times(value)}, {rate(run.records_per_s)} records/s" + (
        "" if run.is_whole else f", {run.status}"
    )
