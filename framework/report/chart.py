"""The charts, drawn by matplotlib: an SVG for the page and a PNG for a README each.

A bar's name stands above it, not beside it, and a chart is 420 units wide: so it can be read on a phone and twice in a row on a screen.
"""

import io
import logging
import math
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from framework.report.compare import Look, Relative, looks
from framework.report.metrics import MOST, columns_of, thinned
from framework.report.palette import GRID, INK, MUTED, OF_RUN, PAPER, of_run, of_span
from framework.report.run import Run
from framework.report.svg import inlined
from framework.report.units import rate, seconds, share, time_unit
from framework.span import IDLE, SPANS

WIDTH, ROW, EDGE = 420.0, 33.0, 10.0  # units of the SVG; of a PNG 1/72 inch
PNG_DPI = 200
LETTER = 6.1  # units: the mean width of a letter of size 10
STRIPE = 6.0  # units: of each of the runs that share a line
DASHES: tuple[Any, ...] = ("solid", (0, (8, 3)), (0, (2, 2.5)), (0, (9, 3, 2, 3)))
MOST_POINTS, LEAST = 12_000, 100  # of a chart; of a curve in it
NUM_DECADES = 1.5  # between a loss's least and greatest: more, and its axis is logarithmic
MARKED = 60  # points: fewer have a dot each
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a run may be called $x$
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.dash_capstyle": "butt",
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "round",
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
}


class Chart(NamedTuple):
    """``name``: of its files. ``title``, ``caption``: plain text. ``svg``: an element, what was written by others escaped. ``png``: None
    where none was asked for.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes | None


def charts(runs: Sequence[Run], names: Sequence[str], times: Relative, png: bool) -> list[Chart]:
    """Those there is something to draw in: relative times, spans, and each metric over steps and over seconds."""
    with _style():
        return [chart for draw in (_times_chart, _spans_chart) if (chart := draw(runs, names, times, png))] + list(
            _curve_charts(runs, names, png)
        )


@contextmanager
def _style() -> Generator[None, None, None]:
    """Defaults of matplotlib and ``STYLE``, whatever the user's own file says; letters that its font lacks are no warning."""
    settings: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    settings.update(STYLE)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _finished(name: str, title: str, caption: str, figure: Figure, tips: Mapping[str, str], png: bool) -> Chart:
    mpl.rcParams["svg.hashsalt"] = name  # ids that are the same each time, and differ between charts
    text, picture = io.StringIO(), io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    if png:
        figure.savefig(picture, format="png", dpi=PNG_DPI, facecolor=PAPER)
    return Chart(
        name, title, caption, inlined(text.getvalue(), name, f"{title}. {caption}", tips), picture.getvalue() if png else None
    )


# -------------------------------------------------------------------------------------------------------------------- bars


def _bars(num_rows: int, top: float, unit: str) -> tuple[Figure, Axes]:
    """Axes with a row a unit high for each run, the first on top; ``top``: units kept free above."""
    bottom = 34.0
    height = top + num_rows * ROW + bottom
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes((EDGE / WIDTH, bottom / height, 1 - 2 * EDGE / WIDTH, num_rows * ROW / height))
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)  # its lines would cross the names
    axes.tick_params(length=3)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(unit)
    return figure, axes


def _line(axes: Axes, row: int, left: str, right: str) -> None:
    """Above a bar: the run's name, and at the other end its figures."""
    room = int((WIDTH - 2 * EDGE - len(right) * LETTER) / LETTER) - 1
    axes.text(0, row + 0.44, fitted(left, max(8, room)), transform=axes.get_yaxis_transform())
    axes.text(1, row + 0.44, right, transform=axes.get_yaxis_transform(), ha="right", color=MUTED)


def fitted(text: str, num_letters: int) -> str:
    """``text``, its middle left out where it is too long."""
    if len(text) <= num_letters:
        return text
    head = num_letters * 2 // 3
    return f"{text[:head]}…{text[len(text) - (num_letters - head - 1) :]}"


def _spans_chart(runs: Sequence[Run], names: Sequence[str], times: Relative, png: bool) -> Chart | None:
    """Seconds per step, a piece for each span."""
    longest_s = max((run.step_s or 0.0 for run in runs), default=0.0)
    if not longest_s:
        return None
    size, unit = time_unit(longest_s)
    spans = [name for name in dict.fromkeys([IDLE, *SPANS, *(name for run in runs for name in run.spans)]) if _any(runs, name)]
    figure, axes = _bars(len(runs), 22, f"{unit} per step")
    tips: dict[str, str] = {}
    for row, run in enumerate(runs):
        _line(axes, row, names[row], _spans_words(run))
        left = 0.0
        for name in [name for name in spans if name in run.spans and run.step_s]:
            width = run.spans[name].mean_s
            bar = axes.barh(
                row + 0.73, width / size, left=left / size, height=0.36, color=of_span(name), edgecolor=PAPER, linewidth=0.5
            )
            bar.patches[0].set_gid(key := f"span-{row}-{len(tips)}")
            tips[key] = f"{names[row]}: {name} {seconds(width)}, {share(width / (run.step_s or 1))}"
            left += width
    axes.set_xlim(0, 1.005 * longest_s / size)
    handles = [axes.barh(0, 0, color=of_span(name)) for name in spans]
    _legend(figure, handles, spans, at_top=True, columns=len(spans))
    caption = "The mean step of training, from left to right as it goes; wait: no batch was ready."
    if IDLE in spans:
        caption += " idle: a device had nothing to do; the host's wait beside its work is in the table."
    return _finished("spans", "Where the step time goes", caption, figure, tips, png)


def _any(runs: Sequence[Run], name: str) -> bool:
    return any(name in run.spans for run in runs)


def _spans_words(run: Run) -> str:
    if run.step_s is None:
        return run.status
    wait = f", {share(run.wait_share)} {IDLE if IDLE in run.spans else 'wait'}" if run.wait_share is not None else ""
    return f"{seconds(run.step_s)}{wait}" + ("" if run.is_whole else f", {run.status}")


def _times_chart(runs: Sequence[Run], names: Sequence[str], times: Relative, png: bool) -> Chart | None:
    """Time per record beside the base's."""
    if times.base is None or len(runs) < 2:
        return None
    figure, axes = _bars(len(runs), 6, f"time per record, as a multiple of {fitted(names[times.base], 34)}")
    each, _ = looks(runs, names, len(OF_RUN), len(DASHES))
    tips: dict[str, str] = {}
    base_rate = runs[times.base].records_per_s or 0.0
    greatest = widest = 1.0
    for row, (run, value) in enumerate(zip(runs, times.times, strict=True)):
        _line(axes, row, names[row], _times_words(run, value))
        if value is None:
            continue
        bar = axes.barh(row + 0.73, value, height=0.36, color=of_run(each[row].color), alpha=1.0 if run.is_whole else 0.45)
        bar.patches[0].set_gid(key := f"time-{row}")
        tips[key] = f"{names[row]}: {value:.3f} of the time, {1 / value:.3f} of the speed"
        greatest, widest = max(greatest, value), max(widest, value)
        if run.quartiles is not None and run.records_per_s:
            ends = [base_rate / end for end in reversed(run.quartiles)]
            axes.plot(ends, [row + 0.73] * 2, color=INK, linewidth=1.3, solid_capstyle="butt")
            widest = max(widest, ends[1])
    axes.set_xlim(0, 1.02 * min(widest, 1.3 * greatest))  # a run that hung for a while must not make all bars short
    rows = np.arange(len(runs))
    axes.vlines([1.0] * len(runs), rows + 0.5, rows + 0.96, color=INK, linewidth=1.2)
    caption = (
        f"1 is {names[times.base]}, the upright line; shorter is faster. The thin line on a bar spans the middle half of its reports, "
        "windows or repeats. What did not finish is pale."
    )
    return _finished("times", "Relative time", caption, figure, tips, png)


def _times_words(run: Run, value: float | None) -> str:
    if value is None:
        return run.status
    return f"{value:.2f}\N{MULTIPLICATION SIGN}, {rate(run.records_per_s)} records/s" + (
        "" if run.is_whole else f", {run.status}"
    )


# ------------------------------------------------------------------------------------------------------------------ curves


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Every metric that has a curve, loss first."""
    names = dict.fromkeys(name for run in runs for _, name in run.curves)
    return sorted(names, key=lambda name: name != "loss")


def _curve_charts(runs: Sequence[Run], names: Sequence[str], png: bool) -> Iterator[Chart]:
    for metric in metric_names(runs)[:4]:
        for over in ("steps", "seconds"):
            chart = _curves_chart(runs, names, metric, over, png)
            if chart is not None:
                yield chart


class _Line(NamedTuple):
    """One line of a chart. ``number``: of the run."""

    number: int
    split: str
    x: np.ndarray
    y: np.ndarray


def _lines(runs: Sequence[Run], metric: str, over: str) -> list[_Line]:
    lines = [
        _Line(number, split, np.asarray(getattr(curve, over)), curve.values)
        for number, run in enumerate(runs)
        for (split, name), curve in run.curves.items()
        if name == metric
    ]
    return [line for line in lines if bool(np.any(np.isfinite(line.x) & np.isfinite(line.y)))]


def _curves_chart(runs: Sequence[Run], names: Sequence[str], metric: str, over: str, png: bool) -> Chart | None:
    lines = _lines(runs, metric, over)
    if not lines:
        return None
    each, legend = looks(runs, names, len(OF_RUN), len(DASHES))
    splits = {line.split for line in lines}
    if len(runs) == 1:
        legend = []
    handles = [_handle(look) for _, look in legend]
    texts = [text for text, _ in legend]
    for split in sorted(splits) if len(splits) > 1 else ():
        handles.append(_handle(_single(0, split) if len(runs) == 1 else Look(-1), split))
        texts.append({"train": "training", "val": "validation"}.get(split, split))
    columns = 2 if max(map(len, texts), default=0) <= 28 else 1
    legend_height = 15.0 * math.ceil(len(texts) / columns)
    figure, axes = _panel(legend_height)
    unit = _scale_x(axes, lines, over)
    tips: dict[str, str] = {}
    most = min(MOST, max(LEAST, MOST_POINTS // len(lines)))
    num_thinned = _draw(axes, lines, unit, (runs, names, each), most, tips)
    _scale_y(axes, lines, metric)
    _legend(figure, handles, texts, at_top=False, columns=columns)
    caption = _curves_caption(lines, legend, runs, over, most, num_thinned)
    return _finished(f"{_file_name(metric)}-over-{over}", f"{metric} over {over}", caption, figure, tips, png)


def _file_name(metric: str) -> str:
    """Harmless letters only: a metric's name is the user's."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in metric)[:40]


def _panel(legend_height: float) -> tuple[Figure, Axes]:
    left, bottom, inner, top = 56.0, 38.0 + legend_height, 196.0, 8.0
    height = bottom + inner + top
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes((left / WIDTH, bottom / height, 1 - (left + EDGE) / WIDTH, inner / height))
    axes.tick_params(length=0)
    return figure, axes


def _single(number: int, split: str) -> Look:
    """Of the only run, a color for each split."""
    return Look(number + (split == "val"))


def _handle(look: Look, split: str = "") -> Line2D:
    color = MUTED if look.color < 0 else of_run(look.color)
    width = 1.0 if split == "train" else 2.0
    return Line2D(
        [], [], color=color, linestyle=DASHES[look.dash], linewidth=width, marker="o" if split == "val" else None, markersize=3.5
    )


def _draw(
    axes: Axes,
    lines: Sequence[_Line],
    unit: float,
    whose: tuple[Sequence[Run], Sequence[str], Sequence[Look]],
    most: int,
    tips: dict[str, str],
) -> int:
    """All lines, and their names into ``tips``. Returns how many were thinned."""
    runs, names, each = whose
    num_thinned = 0
    among = _among(lines)
    has_val = any(line.split == "val" for line in lines)
    for line, (place, count) in zip(lines, among, strict=True):
        drawn = thinned(line.x / unit, line.y, most)
        look = _single(0, line.split) if len(runs) == 1 else each[line.number]
        dash = DASHES[look.dash] if count == 1 else (place * STRIPE, (STRIPE, STRIPE * (count - 1)))
        faint = line.split == "train" and len(runs) > 1 and has_val
        style: dict[str, Any] = {"color": of_run(look.color), "linestyle": dash, "linewidth": 1.0 if faint else 1.9}
        if line.split == "val" and len(drawn.x) <= MARKED:
            style |= {"marker": "o", "markersize": 3.4}
        if drawn.low is not None and drawn.high is not None:
            num_thinned += 1
            axes.fill_between(drawn.x, drawn.low, drawn.high, color=of_run(look.color), alpha=0.2, linewidth=0)
        (artist,) = axes.plot(drawn.x, drawn.y, **style)
        artist.set_gid(key := f"curve-{len(tips)}")
        tips[key] = f"{names[line.number]}, {line.split}"
    return num_thinned


def _among(lines: Sequence[_Line]) -> list[tuple[int, int]]:
    """(place, count) of each line among those with the very same points: they take turns, a stripe each, so that none hides another."""
    keys = [(line.split, line.x.tobytes(), line.y.tobytes()) for line in lines]
    counts = Counter(keys)
    seen: Counter[tuple[str, bytes, bytes]] = Counter()
    found: list[tuple[int, int]] = []
    for key in keys:
        found.append((seen[key], counts[key]) if counts[key] <= len(OF_RUN) else (0, 1))
        seen[key] += 1
    return found


def _scale_x(axes: Axes, lines: Sequence[_Line], over: str) -> float:
    """Sets unit and label; returns how much of what is known makes one of the unit."""
    if over == "steps":
        axes.set_xlabel("optimizer steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return 1.0
    size, unit = time_unit(max(float(np.nanmax(line.x)) for line in lines))
    axes.set_xlabel(f"training time, {unit} (without validation)")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return size


def _scale_y(axes: Axes, lines: Sequence[_Line], metric: str) -> None:
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    least, greatest = float(values.min()), float(values.max())
    wide = metric == "loss" and least > 0 and math.log10(greatest / least) > NUM_DECADES
    if wide:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_ylabel(f"{fitted(metric, 24)}, mean per record" + (", log" if wide else ""))


def _curves_caption(
    lines: Sequence[_Line], legend: Sequence[Any], runs: Sequence[Run], over: str, most: int, num_thinned: int
) -> str:
    words = [f"{len({line.number for line in lines})} of {len(runs)} runs."] if len(runs) > 1 else []
    if any(count > 1 for _, count in _among(lines)):
        words.append("A line striped in several colors is that of several runs: their values are the same, to the last bit.")
    if len(runs) > 1 and not legend:
        words.append("Point at a line for its name.")
    if num_thinned:
        columns = columns_of(most)
        words.append(
            f"{num_thinned} lines have more than {most} points and are drawn in {columns} columns: "
            "the mean of a column's points, and a band from the least to the greatest; none is left out."
        )
    not_finite = sum(int(np.count_nonzero(~np.isfinite(line.y))) for line in lines)
    if not_finite:
        words.append(f"{not_finite:,} values are not finite and cannot be drawn.")
    if over == "seconds":
        words.append("Seconds are the sum of the steps' spans: validation and checkpoints are not in them.")
    return " ".join(words)


def _legend(figure: Figure, handles: Sequence[Any], texts: Sequence[str], at_top: bool, columns: int) -> None:
    if not texts:
        return
    room = 58 if columns == 1 else 28
    corner: dict[str, Any] = (
        {"loc": "upper left", "bbox_to_anchor": (0.0, 1.0)} if at_top else {"loc": "lower left", "bbox_to_anchor": (0.1, 0.0)}
    )
    figure.legend(
        handles,
        [fitted(text, room) for text in texts],
        **corner,
        ncols=columns,
        fontsize=9.5,
        handlelength=0.9 if at_top else 2.0,
        handleheight=0.9 if at_top else 0.7,
        handletextpad=0.4,
        columnspacing=0.9 if at_top else 1.6,
        labelspacing=0.35,
        borderaxespad=0.2,
    )
