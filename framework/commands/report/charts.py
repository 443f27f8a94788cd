"""Draw the charts of the page: relative times, spans of a step, and learning curves."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from framework.cli import pages
from framework.cli.tables import rate, seconds, share, time_unit, times
from framework.commands.report.recorded_runs import RecordedRun, RelativeTimes, is_validation
from framework.contracts.span import ALL_SPANS, IDLE

WIDTH = 420.0  # units of the SVG, 1/72 inch of the PNG: readable on a phone, two fit on a screen
EDGE = 10.0
PNG_DPI = 144  # 840 pixels wide, as a README is
DASHES: tuple[Any, ...] = ("solid", (0, (8, 3)), (0, (2, 2.5)), (0, (9, 3, 2, 3)))
MIDDLE = 0.73  # of a bar, in rows
THICK = 0.36  # of a bar, in rows
LETTER = 6.1  # units: the mean width of a letter of size 10
MOST_METRICS = 4
MOST = 600  # points of a curve that are all drawn
GREATEST = 1e30  # an axis cannot show more
SPLITS = {"train": "training", "val": "validation"}

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in pages.COLORS.items()}
_COLOR = re.compile("|".join(map(re.escape, _VARIABLES)))


class Chart(NamedTuple):
    """A finished chart. Its name is part of the names of its files, and its id on the page."""

    name: str
    title: str
    caption: str
    svg: Markup  # an element for the page, in which all foreign text is escaped
    png: bytes | None


# A chart before it becomes text: name, title, caption, figure, and the tooltips of groups by ids.
_Drawing = tuple[str, str, str, Figure, Mapping[str, str]]


def draw_charts(runs: Sequence[RecordedRun], compared: RelativeTimes, png: bool) -> list[Chart]:
    """Draw the charts that have something to show, with ``png`` as pictures too."""
    drawings: list[_Drawing | None] = []
    charts: list[Chart] = []
    with pages.styled():
        if compared.base is not None and len(runs) > 1:
            drawings.append(_draw_times(runs, compared.times, runs[compared.base]))
        if any(run.step_s for run in runs):
            drawings.append(_draw_spans(runs))
        # Each metric over steps and over seconds, loss first.
        known = dict.fromkeys(["loss", *(name for run in runs for _, name in run.curves)])
        for number, metric in enumerate([*known][:MOST_METRICS]):
            # The name of a metric is the user's: only harmless letters become part of a file's.
            file_name = re.sub(r"[^A-Za-z0-9]", "_", metric[:40])
            if file_name != metric:
                file_name += str(number)
            drawings += [
                _draw_curves(runs, metric, over, f"{file_name}-over-{over}")
                for over in ("steps", "seconds")
            ]
        for name, title, caption, figure, tips in filter(None, drawings):
            # Ids that are the same each time, and differ between charts.
            mpl.rcParams["svg.hashsalt"] = name
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            svg = Markup(inlined(text.getvalue(), name, f"{title}. {caption}", tips))  # noqa: S704
            picture = io.BytesIO()
            if png:
                figure.savefig(picture, format="png", dpi=PNG_DPI, facecolor=pages.PAPER)
            charts.append(Chart(name, title, caption, svg, picture.getvalue() or None))
    return charts


def _draw_times(
    runs: Sequence[RecordedRun], relative: Sequence[float | None], base: RecordedRun
) -> _Drawing:
    unit = f"time per record, as a multiple of {fitted(base.label, 34)}"
    figure, axes = _bars(len(runs), 6, unit)
    tips: dict[str, str] = {}
    greatest = widest = 1.0
    for row, (run, value) in enumerate(zip(runs, relative, strict=True)):
        if not value:
            _write_names(axes, row, run.label, run.status)
            continue
        words = f"{times(value)}, {rate(run.records_per_s)} records/s"
        alpha = 1.0
        if not run.is_whole:
            alpha = 0.45
            words += f", {run.status}"
        _write_names(axes, row, run.label, words)
        bar = axes.barh(row + MIDDLE, value, height=THICK, color=pages.of_run(row), alpha=alpha)
        bar.patches[0].set_gid(f"time-{row}")
        tips[f"time-{row}"] = f"{run.label}: {value:.3f} of the time, {1 / value:.3f} of the speed"
        greatest = max(greatest, value)
        if run.quartiles and run.records_per_s:  # a line over the middle half of the times
            low, high = ((base.records_per_s or 0.0) / end for end in reversed(run.quartiles))
            style: dict[str, Any] = {"color": pages.INK, "linewidth": 1.3, "solid_capstyle": "butt"}
            axes.plot([low, high], [row + MIDDLE] * 2, **style)
            widest = max(widest, high)
    # A run that hung for a while must not make all bars short.
    axes.set_xlim(0, 1.02 * min(max(widest, greatest), 1.3 * greatest))
    rows = np.arange(len(runs))
    axes.vlines([1.0] * len(runs), rows + 0.53, rows + 0.95, color=pages.INK, linewidth=1.2)
    caption = f"1 is {base.label}, the upright line; shorter is faster. The thin line on a bar "
    caption += "spans the middle half of its reports, windows or repeats. "
    caption += "What did not finish is pale."
    return "times", "Relative time", caption, figure, tips


def _draw_spans(runs: Sequence[RecordedRun]) -> _Drawing:
    longest_s = max(run.step_s or 0.0 for run in runs)
    unit_s, unit = time_unit(longest_s)
    known = dict.fromkeys(name for run in runs for name in run.spans)
    spans = [name for name in dict.fromkeys([IDLE, *ALL_SPANS, *known]) if name in known]
    figure, axes = _bars(len(runs), 22, f"{unit} per step")
    handles: dict[str, Any] = {}
    tips: dict[str, str] = {}
    for row, run in enumerate(runs):
        step_s = run.step_s or 1.0
        words = run.status
        if run.step_s is not None:
            words = seconds(step_s)
            if run.wait_share is not None:
                words += f", {share(run.wait_share)} {IDLE if IDLE in run.spans else 'wait'}"
            if not run.is_whole:
                words += f", {run.status}"
        _write_names(axes, row, run.label, words)
        end_s = 0.0
        for span in [name for name in spans if name in run.spans]:
            width_s = run.spans[span].mean_s
            color, _ = pages.COLORS[pages.OF_SPAN.get(span, "pink")]
            style: dict[str, Any] = {"color": color, "edgecolor": pages.PAPER, "linewidth": 0.5}
            left = end_s / unit_s
            handles[span] = axes.barh(row + MIDDLE, width_s / unit_s, THICK, left, **style)
            handles[span].patches[0].set_gid(f"{span}-{row}")
            of_step = f"{seconds(width_s)}, {share(width_s / step_s)}"
            tips[f"{span}-{row}"] = f"{run.label}: {span} {of_step}"
            end_s += width_s
    axes.set_xlim(0, 1.005 * longest_s / unit_s)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, 1.0)}
    sizes: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 0.9}
    _legend(figure, list(map(handles.get, spans)), spans, ncols=len(spans), **place, **sizes)
    caption = "The mean step of training, from left to right as it goes; wait: no batch was ready."
    if any(run.what != "train" for run in runs):
        caption = "The mean step of what the bench measured, which may be less than training."
    if IDLE in spans:
        caption += " idle: a device had nothing to do; the host's wait beside it is in the table."
    return "spans", "Where the step time goes", caption, figure, tips


def _bars(num_rows: int, top: float, unit: str) -> tuple[Figure, Axes]:
    """Return axes with a row of height 1 for each run, below ``top`` free units."""
    figure, axes = _panel(num_rows * 33.0, top, left=EDGE, bottom=34.0)
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)  # its lines would cross the names
    axes.tick_params(length=3)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(unit)
    return figure, axes


def _write_names(axes: Axes, row: int, name: str, figures: str) -> None:
    room = int((WIDTH - 2 * EDGE - len(figures) * LETTER) / LETTER) - 1
    across = axes.get_yaxis_transform()
    axes.text(0, row + 0.44, fitted(name, max(8, room)), transform=across)
    axes.text(1, row + 0.44, figures, transform=across, ha="right", color=pages.MUTED)


class Drawn(NamedTuple):
    """The points of a curve that are drawn: all of them, or a mean and two ends per column."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None  # None if every point is drawn
    high: np.ndarray | None


def _draw_curves(
    runs: Sequence[RecordedRun], metric: str, over: str, chart_name: str
) -> _Drawing | None:
    curves: list[tuple[int, str, np.ndarray, np.ndarray]] = []
    num_left_out = 0
    for number, run in enumerate(runs):
        for (split, name), curve in run.curves.items():
            if name == metric:
                x = curve.steps if over == "steps" else curve.seconds
                y = np.where(np.abs(curve.values) < GREATEST, curve.values, math.nan)
                num_left_out += int(np.count_nonzero(~np.isfinite(y)))
                if np.any(np.isfinite(x) & np.isfinite(y)):
                    curves.append((number, split, x, y))
    if not curves:
        return None
    most = min(MOST, max(100, 12_000 // len(curves)))
    lines = [(number, split, thinned(x, y, most)) for number, split, x, y in curves]
    is_alone = len(runs) == 1
    splits = sorted({split for _, split, _ in lines})
    handles: list[Line2D] = []
    texts: list[str] = []
    if 1 < len(runs) <= len(pages.OF_RUN):
        handles += [_handle(number) for number in range(len(runs))]
        texts += [run.label for run in runs]
    for number, split in enumerate(splits if len(splits) > 1 else ()):
        handles.append(_handle(number if is_alone else None, split))
        texts.append(_split_words(split))
    columns = 2 if max(map(len, texts), default=0) <= 28 else 1
    legend_height = 15.0 * math.ceil(len(texts) / columns)
    figure, axes = _panel(inner=196.0, top=8.0, left=56.0, bottom=38.0 + legend_height)
    axes.tick_params(length=0)
    unit = _scale_axes(axes, metric, over, [drawn for _, _, drawn in lines])
    thins = not is_alone and any(map(is_validation, splits))
    tips: dict[str, str] = {}
    for place, (number, split, (x, y, low, high)) in enumerate(lines):
        look = splits.index(split) if is_alone else number
        color = pages.of_run(look)
        if low is not None and high is not None:
            axes.fill_between(x / unit, low, high, color=color, alpha=0.25, linewidth=0)
        dash = DASHES[look // len(pages.OF_RUN) % len(DASHES)]
        style: dict[str, Any] = {"color": color, "linestyle": dash}
        style["linewidth"] = 1.0 if thins and split == "train" else 1.9
        if is_validation(split) and len(x) <= 60:
            style |= {"marker": "o", "markersize": 3.4}
        (artist,) = axes.plot(x / unit, y, **style)
        artist.set_gid(f"curve-{place}")
        tips[f"curve-{place}"] = f"{runs[number].label}, {_split_words(split)}"
    if texts:
        where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.1, 0.0)}
        sizes: dict[str, Any] = {"handlelength": 2.0, "handleheight": 0.7, "columnspacing": 1.6}
        _legend(figure, handles, texts, ncols=columns, **where, **sizes)

    words: list[str] = []
    if not is_alone:
        words.append(f"{len({number for number, _, _ in lines})} of {len(runs)} runs.")
    if len(runs) > len(pages.OF_RUN):
        words.append("Point at a line for its name.")
    if num_thinned := sum(drawn.low is not None for _, _, drawn in lines):
        thin = f"Lines of more than {most} points ({num_thinned} here) are drawn in "
        thin += f"{num_columns(most)} columns: the mean of a column's points, and a band from "
        words.append(f"{thin}the least to the greatest; none is left out.")
    if num_left_out:
        words.append(f"{num_left_out:,} values are not finite and cannot be drawn.")
    if over == "seconds":
        words.append("Seconds are the sum of the steps' spans, without validation and checkpoints.")
    return chart_name, f"{metric} over {over}", " ".join(words), figure, tips


def _scale_axes(axes: Axes, metric: str, over: str, drawn: Sequence[Drawn]) -> float:
    """Label the axes. Return the steps or seconds that make one of the unit of the first."""
    unit = 1.0
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=over == "steps"))
    if over == "steps":
        axes.set_xlabel("optimizer steps")
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    else:
        unit, name = time_unit(max(float(curve.x[-1]) for curve in drawn))
        axes.set_xlabel(f"training time, {name} (without validation)")
    ends = [end for curve in drawn for end in curve[1:] if end is not None]
    least = min(float(values.min()) for values in ends)
    greatest = max(float(values.max()) for values in ends)
    label = f"{fitted(metric, 24)}, mean per record"
    if metric == "loss" and least > 0 and math.log10(greatest / least) > 1.5:
        axes.set_yscale("log")
        label += ", log"
        locator = ticker.LogLocator(subs=(1.0,), numticks=7)
        if greatest / least < 1000:
            locator = ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.set_ylabel(label)
    return unit


def thinned(x: np.ndarray, y: np.ndarray, most: int = MOST) -> Drawn:
    """Return every finite point, or columns of equal width if there are more than ``most``.

    ``x`` must not decrease. Every point lies between the least and the greatest of its column.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most or x[0] == x[-1]:
        return Drawn(x, y, None, None)
    edges = np.linspace(x[0], x[-1], num_columns(most) + 1)
    # An empty column starts at the same point as the next column, so ``unique`` drops it.
    starts = np.unique(np.searchsorted(x, edges[:-1], side="left"))
    counts = np.diff([*starts, len(x)])
    mean_x = np.add.reduceat(x, starts) / counts
    mean_y = np.add.reduceat(y, starts) / counts
    return Drawn(mean_x, mean_y, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))


def num_columns(most: int) -> int:
    """Return the columns of a thinned curve, whose means and ends are about ``most`` numbers."""
    return max(1, 2 * most // 5)


def _split_words(split: str) -> str:
    kind, _, name = split.partition(".")
    words = SPLITS.get(kind, kind)
    return f"{words}, {name}" if name else words


def _handle(number: int | None, split: str = "") -> Line2D:
    style: dict[str, Any] = {"color": pages.MUTED, "linewidth": 1.0 if split == "train" else 2.0}
    if number is not None:
        dash = DASHES[number // len(pages.OF_RUN) % len(DASHES)]
        style |= {"color": pages.of_run(number), "linestyle": dash}
    if is_validation(split):
        style |= {"marker": "o", "markersize": 3.5}
    return Line2D([], [], **style)


def fitted(text: str, num_letters: int) -> str:
    """Shorten ``text`` to ``num_letters`` by leaving out its middle."""
    if len(text) <= num_letters:
        return text
    head = num_letters * 2 // 3
    return f"{text[:head]}…{text[len(text) - (num_letters - head - 1) :]}"


def _panel(inner: float, top: float, left: float, bottom: float) -> tuple[Figure, Axes]:
    """Return a figure with axes of height ``inner`` and these margins, all in units."""
    height = top + inner + bottom
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    width = 1 - (left + EDGE) / WIDTH
    return figure, figure.add_axes((left / WIDTH, bottom / height, width, inner / height))


def _legend(figure: Figure, handles: Sequence[Any], texts: Sequence[str], **options: Any) -> None:
    shown = [fitted(text, 58 if options["ncols"] == 1 else 28) for text in texts]
    spaces: dict[str, Any] = {"handletextpad": 0.4, "labelspacing": 0.35, "borderaxespad": 0.2}
    figure.legend(handles, shown, fontsize=9.5, **spaces, **options)


def inlined(text: str, name: str, title: str, tips: Mapping[str, str]) -> str:
    """Return the SVG element of a chart, which loads nothing and follows light and dark mode."""

    def rewritten(match: re.Match[str]) -> str:
        """Rewrite one tag. Text between tags may be the name of a run, and stays as it is."""
        tag = match[0].replace("xlink:href", "href")
        tag = _COLOR.sub(lambda color: _VARIABLES[color[0]], tag)
        tag = re.sub(r"(\.\d{2})\d+", r"\1", tag)
        group = re.fullmatch(r'<g id="([^"]*)"(/?)>', tag)
        if group is None:
            return tag
        # Without its id, since the ids of groups repeat from chart to chart.
        tag = f"<g{group[2]}>"
        if group[1] in tips:
            tag += f"<title>{escape(tips[group[1]])}</title>"
        return tag

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", rewritten, text)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None  # matplotlib always writes one
    label = f'<title id="title-{name}">{escape(title)}</title>'
    root = f'role="img" aria-labelledby="title-{name}" focusable="false"'
    return f'<svg viewBox="{box[1]}" {root}>{label}' + text[text.index(">") + 1 :]
