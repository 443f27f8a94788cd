"""Learning curves of all runs in one chart, over steps or over seconds."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from framework.cli.palette import MUTED, OF_RUN, of_run
from framework.cli.units import time_unit
from framework.commands.report.chart import DASHES, Chart, finished, fitted, legend, panel
from framework.commands.report.compare_runs import Look, looks
from framework.commands.report.recorded_run import RecordedRun, is_validation
from framework.commands.report.run_metrics import (
    MOST,
    WAITING,
    WORKERS,
    Drawn,
    columns_of,
    thinned,
)

MOST_METRICS = 4
MOST_POINTS = 12_000  # of a chart
LEAST = 100  # points of a curve, however many curves a chart has
NUM_DECADES = 1.5  # if a loss spans more, its axis is logarithmic
MARKED = 60  # points: a curve with fewer has a dot for each
STRIPE = 6.0  # units: of each of the runs that share a line
GREATEST = 1e30  # an axis cannot show more
SPLITS = {"train": "training", "val": "validation"}


class _Line(NamedTuple):
    name: str  # of its run
    split: str
    look: Look
    drawn: Drawn
    place: int = 0  # among the lines with exactly the same points
    num_alike: int = 1  # lines with exactly the same points


class _Lines(NamedTuple):
    lines: list[_Line]
    labels: list[tuple[str, Look]]
    most: int  # a line with more points is thinned
    num_left_out: int  # points that cannot be drawn
    num_runs: int  # also those without a line


def curve_charts(runs: Sequence[RecordedRun], names: Sequence[str], png: bool) -> Iterator[Chart]:
    """Draw each metric over steps and over seconds, loss first.

    Tuned workers are drawn if their number changed in any run.
    """
    metrics = [name for name in metric_names(runs) if name not in (WORKERS, WAITING)]
    workers = [run.curves[key].values for run in runs for key in run.curves if key[1] == WORKERS]
    tuned = (WORKERS, WAITING) if any(np.ptp(values) > 0 for values in workers) else ()
    for number, metric in enumerate([*metrics[:MOST_METRICS], *tuned]):
        file_name = _file_name(metric, number)
        for over in ("steps", "seconds"):
            chart = _collect(runs, names, metric, over)
            if chart.lines:
                figure, tips = _draw(chart, metric, over)
                title = f"{metric} over {over}"
                caption = _caption(chart, over)
                yield finished(f"{file_name}-over-{over}", title, caption, figure, tips, png)


def _file_name(metric: str, number: int) -> str:
    """Return the name of a metric, or letters and a number if it could harm a file's name."""
    # The name of a metric is the user's: only harmless letters become part of a file's name.
    letters = (c if c.isascii() and c.isalnum() else "_" for c in metric[:40])
    file_name = "".join(letters)
    if file_name != metric:
        file_name += str(number)
    return file_name


def metric_names(runs: Sequence[RecordedRun]) -> list[str]:
    """Return every metric that has a curve, loss first."""
    names = dict.fromkeys(name for run in runs for _, name in run.curves)
    return sorted(names, key=lambda name: name != "loss")


def _collect(runs: Sequence[RecordedRun], names: Sequence[str], metric: str, over: str) -> _Lines:
    each, labels = looks(runs, names, len(OF_RUN), len(DASHES))
    if len(runs) == 1:
        labels = []
    curves: list[tuple[int, str, np.ndarray, np.ndarray]] = []
    num_left_out = 0
    for number, run in enumerate(runs):
        for (split, name), curve in run.curves.items():
            if name == metric:
                x = {"steps": curve.steps, "seconds": curve.seconds}[over]
                y = np.where(np.abs(curve.values) < GREATEST, curve.values, math.nan)
                num_left_out += int(np.count_nonzero(~np.isfinite(y)))
                if np.any(np.isfinite(x) & np.isfinite(y)):
                    curves.append((number, split, x, y))
    most = min(MOST, max(LEAST, MOST_POINTS // max(1, len(curves))))
    keys = [(split, x.tobytes(), y.tobytes()) for _, split, x, y in curves]
    counts = Counter(keys)
    seen: Counter[tuple[str, bytes, bytes]] = Counter()
    of_split = _of_split([split for _, split, _, _ in curves])
    lines: list[_Line] = []
    for key, (number, split, x, y) in zip(keys, curves, strict=True):
        look = each[number]
        if len(runs) == 1:
            look = of_split[split]
        line = _Line(names[number], split, look, thinned(x, y, most))
        if counts[key] <= len(OF_RUN):  # more lines than colors are drawn over each other
            line = line._replace(place=seen[key], num_alike=counts[key])
        seen[key] += 1
        lines.append(line)
    return _Lines(lines, labels, most, num_left_out, len(runs))


def _of_split(splits: Sequence[str]) -> dict[str, Look]:
    """Return the look of each split of one run: training first, then the validation sets."""
    val = sorted({split for split in splits if is_validation(split)})
    looks = {split: Look(1 + number % (len(OF_RUN) - 1)) for number, split in enumerate(val)}
    return {**dict.fromkeys(splits, Look(0)), **looks}


def _words_of(split: str) -> str:
    """Return what a chart calls a split, as in ``validation`` and ``validation, clean``."""
    kind, _, name = split.partition(".")
    words = SPLITS.get(kind, kind)
    return f"{words}, {name}" if name else words


def _draw(chart: _Lines, metric: str, over: str) -> tuple[Figure, dict[str, str]]:
    """Return the figure, and the tooltip of each line by the id of its group."""
    splits = sorted({line.split for line in chart.lines})
    handles = [_handle(look) for _, look in chart.labels]
    texts = [text for text, _ in chart.labels]
    if len(splits) > 1:
        for split in splits:
            look = Look(-1)
            if chart.num_runs == 1:
                look = _of_split(splits)[split]
            handles.append(_handle(look, split))
            texts.append(_words_of(split))
    columns = 2 if max(map(len, texts), default=0) <= 28 else 1
    legend_height = 15.0 * math.ceil(len(texts) / columns)
    figure, axes = panel(inner=196.0, top=8.0, left=56.0, bottom=38.0 + legend_height)
    axes.tick_params(length=0)
    unit = _scale_x(axes, chart.lines, over)
    _draw_bands(axes, chart.lines, unit)
    thin = "train" if any(map(is_validation, splits)) and chart.num_runs > 1 else ""
    tips: dict[str, str] = {}
    for number, line in enumerate(chart.lines):
        (artist,) = axes.plot(line.drawn.x / unit, line.drawn.y, **_style(line, thin))
        key = f"curve-{number}"
        artist.set_gid(key)
        tips[key] = f"{line.name}, {_words_of(line.split)}"
    _scale_y(axes, chart.lines, metric)
    if texts:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.1, 0.0)}
        sizes: dict[str, Any] = {"handlelength": 2.0, "handleheight": 0.7, "columnspacing": 1.6}
        legend(figure, handles, texts, ncols=columns, **place, **sizes)
    return figure, tips


def _handle(look: Look, split: str = "") -> Line2D:
    style: dict[str, Any] = {"color": MUTED, "linestyle": DASHES[look.dash], "linewidth": 2.0}
    if look.color >= 0:
        style["color"] = of_run(look.color)
    if split == "train":
        style["linewidth"] = 1.0
    if is_validation(split):
        style |= {"marker": "o", "markersize": 3.5}
    return Line2D([], [], **style)


def _draw_bands(axes: Axes, lines: Sequence[_Line], unit: float) -> None:
    """Fill between the least and the greatest of each column of thinned lines."""
    corners: list[np.ndarray] = []
    colors: list[str] = []
    for line in lines:
        low = line.drawn.low
        high = line.drawn.high
        if low is not None and high is not None:
            x = line.drawn.x / unit
            there = np.stack([x, low], axis=1)
            back = np.stack([x, high], axis=1)[::-1]
            corners.append(np.concatenate([there, back]))
            colors.append(of_run(line.look.color))
    if corners:
        bands = PolyCollection(corners, facecolors=colors, alpha=0.25, linewidths=0)
        axes.add_collection(bands, autolim=True)


def _style(line: _Line, thin: str) -> dict[str, Any]:
    """Return the style of a line. Lines with the same points take turns, a stripe each."""
    dash = DASHES[line.look.dash]
    if line.num_alike > 1:
        dash = (line.place * STRIPE, (STRIPE, STRIPE * (line.num_alike - 1)))
    style: dict[str, Any] = {"color": of_run(line.look.color), "linestyle": dash, "linewidth": 1.9}
    if line.split == thin:
        style["linewidth"] = 1.0
    if is_validation(line.split) and len(line.drawn.x) <= MARKED:
        style |= {"marker": "o", "markersize": 3.4}
    return style


def _scale_x(axes: Axes, lines: Sequence[_Line], over: str) -> float:
    """Set the label of the axis, and return the steps or seconds that make one of its unit."""
    if over == "steps":
        axes.set_xlabel("optimizer steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return 1.0
    unit_s, name = time_unit(max(float(line.drawn.x[-1]) for line in lines))
    axes.set_xlabel(f"training time, {name} (without validation)")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return unit_s


def _scale_y(axes: Axes, lines: Sequence[_Line], metric: str) -> None:
    ends = [end for line in lines for end in line.drawn[1:] if end is not None]
    least = min(float(values.min()) for values in ends)
    greatest = max(float(values.max()) for values in ends)
    label = fitted(metric, 24)
    if metric not in (WORKERS, WAITING):
        label += ", mean per record"
    if metric == "loss" and least > 0 and math.log10(greatest / least) > NUM_DECADES:
        axes.set_yscale("log")
        label += ", log"
        locator = LogLocator(subs=(1.0,), numticks=7)
        if greatest / least < 1000:
            locator = LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_ylabel(label)


def _caption(chart: _Lines, over: str) -> str:
    words: list[str] = []
    if chart.num_runs > 1:
        words.append(f"{len({line.name for line in chart.lines})} of {chart.num_runs} runs.")
    if any(line.num_alike > 1 for line in chart.lines):
        words.append(
            "A line striped in several colors is that of several runs: "
            "their values are the same, to the last bit."
        )
    if chart.num_runs > 1 and not chart.labels:
        words.append("Point at a line for its name.")
    num_thinned = sum(line.drawn.low is not None for line in chart.lines)
    if num_thinned:
        words.append(
            f"Lines of more than {chart.most} points ({num_thinned} here) are drawn in "
            f"{columns_of(chart.most)} columns: the mean of a column's points, and a band from the "
            "least to the greatest; none is left out."
        )
    if chart.num_left_out:
        words.append(f"{chart.num_left_out:,} values are not finite and cannot be drawn.")
    if over == "seconds":
        words.append(
            "Seconds are the sum of the steps' spans: validation and checkpoints are not in them."
        )
    return " ".join(words)
