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

from framework.commands.report.chart import DASHES, EDGE, WIDTH, Chart, finished, fitted, legend
from framework.commands.report.compare_runs import Look, looks
from framework.commands.report.palette import MUTED, OF_RUN, of_run
from framework.commands.report.recorded_run import RecordedRun
from framework.commands.report.run_metrics import MOST, Drawn, columns_of, thinned
from framework.commands.report.units import time_unit

MOST_METRICS = 4
MOST_POINTS, LEAST = 12_000, 100  # of a chart; of a curve in it, however many there are
NUM_DECADES = 1.5  # between a loss's least and greatest: more, and its axis is logarithmic
MARKED = 60  # points: fewer have a dot each
STRIPE = 6.0  # units: of each of the runs that share a line
GREATEST = 1e30  # beyond it an axis cannot be drawn
SPLITS = {"train": "training", "val": "validation"}


class _Line(NamedTuple):
    """One line of a chart. ``name``: of its run. ``among``: its place among the lines with the very same points, and their number."""

    name: str
    split: str
    look: Look
    drawn: Drawn
    among: tuple[int, int]


class _Lines(NamedTuple):
    """``most``: points of a line that are all drawn. ``num_left_out``: points that cannot be drawn. ``labels``: of the legend."""

    lines: list[_Line]
    most: int
    num_left_out: int
    labels: list[tuple[str, Look]]


def curve_charts(runs: Sequence[RecordedRun], names: Sequence[str], png: bool) -> Iterator[Chart]:
    """Two of each metric, over steps and over seconds, loss first."""
    for number, metric in enumerate(metric_names(runs)[:MOST_METRICS]):
        for over in ("steps", "seconds"):
            found = _found(runs, names, metric, over)
            if found.lines:
                caption = _caption(found, runs, over)
                figure, tips = _drawn(found, metric, over, is_one=len(runs) == 1)
                yield finished(
                    f"{_file_name(metric, number)}-over-{over}",
                    f"{metric} over {over}",
                    caption,
                    figure,
                    tips,
                    png,
                )


def metric_names(runs: Sequence[RecordedRun]) -> list[str]:
    """Every metric that has a curve, loss first."""
    names = dict.fromkeys(name for run in runs for _, name in run.curves)
    return sorted(names, key=lambda name: name != "loss")


def _file_name(metric: str, number: int) -> str:
    """Harmless letters only, since a metric's name is the user's; with ``number`` where that is another name."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in metric)[
        :40
    ]
    return name if name == metric else f"{name}{number}"


def _found(runs: Sequence[RecordedRun], names: Sequence[str], metric: str, over: str) -> _Lines:
    """The lines of one chart, thinned."""
    each, labels = looks(runs, names, len(OF_RUN), len(DASHES))
    curves = [
        (number, split, c)
        for number, run in enumerate(runs)
        for (split, name), c in run.curves.items()
        if name == metric
    ]
    points = [(np.asarray(getattr(curve, over)), _drawable(curve.values)) for _, _, curve in curves]
    some = [bool(np.any(np.isfinite(x) & np.isfinite(y))) for x, y in points]
    most = min(MOST, max(LEAST, MOST_POINTS // max(1, sum(some))))
    among = _among([(split, x, y) for (_, split, _), (x, y) in zip(curves, points, strict=True)])
    lines = [
        _Line(names[number], split, each[number], thinned(*points[place], most), among[place])
        for place, (number, split, _) in enumerate(curves)
        if some[place]
    ]
    num_left_out = sum(int(np.count_nonzero(~np.isfinite(y))) for _, y in points)
    return _Lines(lines, most, num_left_out, labels if len(runs) > 1 else [])


def _drawable(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < GREATEST, values, math.nan)


def _among(lines: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> list[tuple[int, int]]:
    """(place, count) of each line among those with the very same points; too many of them are drawn over each other."""
    keys = [(split, x.tobytes(), y.tobytes()) for split, x, y in lines]
    counts = Counter(keys)
    seen: Counter[tuple[str, bytes, bytes]] = Counter()
    found: list[tuple[int, int]] = []
    for key in keys:
        found.append((seen[key], counts[key]) if counts[key] <= len(OF_RUN) else (0, 1))
        seen[key] += 1
    return found


# ----------------------------------------------------------------------------------------------------------------- drawing


def _drawn(found: _Lines, metric: str, over: str, is_one: bool) -> tuple[Figure, dict[str, str]]:
    """The figure, and what each line is, by the id of its group. ``is_one``: one run, a color for each split."""
    splits = sorted({line.split for line in found.lines})
    handles = [_handle(look) for _, look in found.labels]
    texts = [text for text, _ in found.labels]
    if len(splits) > 1:
        handles += [_handle(_of_split(split) if is_one else Look(-1), split) for split in splits]
        texts += [SPLITS.get(split, split) for split in splits]
    columns = 2 if max(map(len, texts), default=0) <= 28 else 1
    figure, axes = _panel(15.0 * math.ceil(len(texts) / columns))
    size = _scale_x(axes, found.lines, over)
    _draw_bands(axes, found.lines, size, is_one)
    tips: dict[str, str] = {}
    for number, line in enumerate(found.lines):
        style = _style(line, is_one, behind="val" in splits)
        (artist,) = axes.plot(line.drawn.x / size, line.drawn.y, **style)
        artist.set_gid(key := f"curve-{number}")
        tips[key] = f"{line.name}, {SPLITS.get(line.split, line.split)}"
    _scale_y(axes, found.lines, metric)
    legend(figure, handles, texts, at_top=False, columns=columns)
    return figure, tips


def _panel(legend_height: float) -> tuple[Figure, Axes]:
    left, bottom, inner, top = 56.0, 38.0 + legend_height, 196.0, 8.0
    height = bottom + inner + top
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes(
        (left / WIDTH, bottom / height, 1 - (left + EDGE) / WIDTH, inner / height)
    )
    axes.tick_params(length=0)
    return figure, axes


def _of_split(split: str) -> Look:
    return Look(1 if split == "val" else 0)


def _handle(look: Look, split: str = "") -> Line2D:
    color = MUTED if look.color < 0 else of_run(look.color)
    style: dict[str, Any] = {"marker": "o", "markersize": 3.5} if split == "val" else {}
    return Line2D(
        [],
        [],
        color=color,
        linestyle=DASHES[look.dash],
        linewidth=1.0 if split == "train" else 2.0,
        **style,
    )


def _style(line: _Line, is_one: bool, behind: bool) -> dict[str, Any]:
    """``behind``: training is drawn thin, since validation is there. Lines with the same points take turns, a stripe each."""
    look = _of_split(line.split) if is_one else line.look
    place, count = line.among
    dash = DASHES[look.dash] if count == 1 else (place * STRIPE, (STRIPE, STRIPE * (count - 1)))
    thin = line.split == "train" and behind and not is_one
    style: dict[str, Any] = {
        "color": of_run(look.color),
        "linestyle": dash,
        "linewidth": 1.0 if thin else 1.9,
    }
    if line.split == "val" and len(line.drawn.x) <= MARKED:
        style |= {"marker": "o", "markersize": 3.4}
    return style


def _draw_bands(axes: Axes, lines: Sequence[_Line], size: float, is_one: bool) -> None:
    """From the least to the greatest of each column of the lines that were thinned."""
    corners: list[np.ndarray] = []
    colors: list[str] = []
    for line in lines:
        x, low, high = line.drawn.x / size, line.drawn.low, line.drawn.high
        if low is not None and high is not None:
            there, back = np.stack([x, low], axis=1), np.stack([x, high], axis=1)[::-1]
            corners.append(np.concatenate([there, back]))
            colors.append(of_run((_of_split(line.split) if is_one else line.look).color))
    if corners:
        axes.add_collection(
            PolyCollection(corners, facecolors=colors, alpha=0.25, linewidths=0), autolim=True
        )


def _scale_x(axes: Axes, lines: Sequence[_Line], over: str) -> float:
    """Sets unit and label; returns how much of what is known makes one of the unit."""
    if over == "steps":
        axes.set_xlabel("optimizer steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return 1.0
    size, unit = time_unit(max(float(line.drawn.x[-1]) for line in lines))
    axes.set_xlabel(f"training time, {unit} (without validation)")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return size


def _scale_y(axes: Axes, lines: Sequence[_Line], metric: str) -> None:
    ends = [
        values
        for line in lines
        for values in (line.drawn.y, line.drawn.low, line.drawn.high)
        if values is not None
    ]
    least, greatest = (
        min(float(values.min()) for values in ends),
        max(float(values.max()) for values in ends),
    )
    wide = metric == "loss" and least > 0 and math.log10(greatest / least) > NUM_DECADES
    if wide:
        axes.set_yscale("log")
        few = greatest / least < 1000
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12 if few else 7)
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_ylabel(f"{fitted(metric, 24)}, mean per record" + (", log" if wide else ""))


def _caption(found: _Lines, runs: Sequence[RecordedRun], over: str) -> str:
    words = (
        [f"{len({line.name for line in found.lines})} of {len(runs)} runs."]
        if len(runs) > 1
        else []
    )
    if any(line.among[1] > 1 for line in found.lines):
        words.append(
            "A line striped in several colors is that of several runs: their values are the same, to the last bit."
        )
    if len(runs) > 1 and not found.labels:
        words.append("Point at a line for its name.")
    num_thinned = sum(line.drawn.low is not None for line in found.lines)
    if num_thinned:
        words.append(
            f"Lines of more than {found.most} points ({num_thinned} here) are drawn in {columns_of(found.most)} columns: "
            "the mean of a column's points, and a band from the least to the greatest; none is left out."
        )
    if found.num_left_out:
        words.append(f"{found.num_left_out:,} values are not finite and cannot be drawn.")
    if over == "seconds":
        words.append(
            "Seconds are the sum of the steps' spans: validation and checkpoints are not in them."
        )
    return " ".join(words)
