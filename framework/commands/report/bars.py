"""Charts with a bar for each run: relative times, and the spans of a step.

The name of a run stands above its bar, so that long names fit on a phone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from framework.cli.palette import INK, MUTED, OF_RUN, PAPER, of_run, of_span
from framework.cli.units import rate, seconds, share, time_unit, times
from framework.commands.report.chart import (
    DASHES,
    EDGE,
    WIDTH,
    Chart,
    finished,
    fitted,
    legend,
    panel,
)
from framework.commands.report.compare_runs import Relative, looks
from framework.commands.report.recorded_run import RecordedRun
from framework.contracts.span import ALL_SPANS, IDLE

ROW = 33.0  # units: the height of a name and its bar
MIDDLE = 0.73  # of a bar, in rows
THICK = 0.36  # of a bar, in rows
LETTER = 6.1  # units: the mean width of a letter of size 10


def times_chart(
    runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative, png: bool
) -> Chart | None:
    if compared.base is None or len(runs) < 2:
        return None
    base = names[compared.base]
    figure, axes = _bars(len(runs), 6, f"time per record, as a multiple of {fitted(base, 34)}")
    each, _ = looks(runs, names, len(OF_RUN), len(DASHES))
    tips: dict[str, str] = {}
    greatest = widest = 1.0
    for row, (run, value) in enumerate(zip(runs, compared.times, strict=True)):
        if value is None:
            _write_names(axes, row, names[row], run.status)
            continue
        words = f"{times(value)}, {rate(run.records_per_s)} records/s"
        _write_names(axes, row, names[row], words + _ending(run))
        alpha = 1.0 if run.is_whole else 0.45
        color = of_run(each[row].color)
        bar = axes.barh(row + MIDDLE, value, height=THICK, color=color, alpha=alpha)
        bar.patches[0].set_gid(f"time-{row}")
        tips[f"time-{row}"] = f"{names[row]}: {value:.3f} of the time, {1 / value:.3f} of the speed"
        greatest = max(greatest, value)
        widest = max(widest, value, _draw_range(axes, row, run, runs[compared.base]))
    # A run that hung for a while must not make all bars short.
    axes.set_xlim(0, 1.02 * min(widest, 1.3 * greatest))
    rows = np.arange(len(runs))
    axes.vlines([1.0] * len(runs), rows + 0.53, rows + 0.95, color=INK, linewidth=1.2)
    caption = (
        f"1 is {base}, the upright line; shorter is faster. The thin line on a bar spans the "
        "middle half of its reports, windows or repeats. What did not finish is pale."
    )
    return finished("times", "Relative time", caption, figure, tips, png)


def _draw_range(axes: Axes, row: int, run: RecordedRun, base: RecordedRun) -> float:
    """Draw a line over the middle half of the relative times, and return its right end."""
    if run.quartiles is None or not run.records_per_s:
        return 0.0
    low, high = ((base.records_per_s or 0.0) / end for end in reversed(run.quartiles))
    axes.plot([low, high], [row + MIDDLE] * 2, color=INK, linewidth=1.3, solid_capstyle="butt")
    return high


def spans_chart(runs: Sequence[RecordedRun], names: Sequence[str], png: bool) -> Chart | None:
    """Draw a mean step of each run, with a piece for each span."""
    longest_s = max((run.step_s or 0.0 for run in runs), default=0.0)
    if not longest_s:
        return None
    unit_s, unit = time_unit(longest_s)
    known = dict.fromkeys(name for run in runs for name in run.spans)
    spans = [name for name in dict.fromkeys([IDLE, *ALL_SPANS, *known]) if name in known]
    figure, axes = _bars(len(runs), 22, f"{unit} per step")
    handles: dict[str, Any] = {}
    tips: dict[str, str] = {}
    for row, run in enumerate(runs):
        _write_names(axes, row, names[row], _step_words(run))
        end_s = 0.0
        for span in [name for name in spans if name in run.spans]:
            width_s = run.spans[span].mean_s
            style: dict[str, Any] = {"color": of_span(span), "edgecolor": PAPER, "linewidth": 0.5}
            left = end_s / unit_s
            handles[span] = axes.barh(row + MIDDLE, width_s / unit_s, THICK, left, **style)
            handles[span].patches[0].set_gid(f"{span}-{row}")
            of_step = share(width_s / (run.step_s or 1.0))
            tips[f"{span}-{row}"] = f"{names[row]}: {span} {seconds(width_s)}, {of_step}"
            end_s += width_s
    axes.set_xlim(0, 1.005 * longest_s / unit_s)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, 1.0)}
    sizes: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 0.9}
    pieces = [handles[span] for span in spans]
    legend(figure, pieces, spans, ncols=len(spans), **place, **sizes)
    caption = "The mean step of training, from left to right as it goes; wait: no batch was ready."
    if any(run.what != "train" for run in runs):
        caption = "The mean step of what the bench measured, which may be less than training."
    if IDLE in spans:
        caption += (
            " idle: a device had nothing to do; the host's wait beside its work is in the table."
        )
    return finished("spans", "Where the step time goes", caption, figure, tips, png)


def _bars(num_rows: int, top: float, unit: str) -> tuple[Figure, Axes]:
    """Return axes with a row of height 1 for each run, below ``top`` free units."""
    figure, axes = panel(num_rows * ROW, top, left=EDGE, bottom=34.0)
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)  # its lines would cross the names
    axes.tick_params(length=3)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(unit)
    return figure, axes


def _write_names(axes: Axes, row: int, name: str, figures: str) -> None:
    """Write above a bar the name of its run, and at the other end its figures."""
    room = int((WIDTH - 2 * EDGE - len(figures) * LETTER) / LETTER) - 1
    across = axes.get_yaxis_transform()
    axes.text(0, row + 0.44, fitted(name, max(8, room)), transform=across)
    axes.text(1, row + 0.44, figures, transform=across, ha="right", color=MUTED)


def _step_words(run: RecordedRun) -> str:
    if run.step_s is None:
        return run.status
    words = seconds(run.step_s)
    if run.wait_share is not None:
        waiting = IDLE if IDLE in run.spans else "wait"
        words += f", {share(run.wait_share)} {waiting}"
    return words + _ending(run)


def _ending(run: RecordedRun) -> str:
    return "" if run.is_whole else f", {run.status}"
