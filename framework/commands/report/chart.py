"""What all charts share: size, style and legend, and the way to an SVG and a PNG.

A chart is 420 units wide: readable on a phone, and two fit beside each other on a screen.
"""

import io
import logging
import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from framework.cli.palette import COLORS, GRID, INK, MUTED, PAPER

WIDTH = 420.0  # units of the SVG, each 1/72 inch of the PNG
EDGE = 10.0
PNG_DPI = 144  # 840 pixels wide, as a README is
DASHES: tuple[Any, ...] = ("solid", (0, (8, 3)), (0, (2, 2.5)), (0, (9, 3, 2, 3)))
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "svg.fonttype": "none",
    "text.hinting": "none",  # half the time of a picture, and not seen at this size
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

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in COLORS.items()}
_TAG = re.compile(r"<[^>]*>")
_COLOR = re.compile("|".join(map(re.escape, _VARIABLES)))
_LONG = re.compile(r"(\.\d{2})\d+")


class Chart(NamedTuple):
    """A finished chart. Its name is part of the names of its files, and its id on the page."""

    name: str
    title: str
    caption: str
    svg: str  # an element for the page, in which all foreign text is escaped
    png: bytes | None


@contextmanager
def styled() -> Generator[None, None, None]:
    """Use our style over matplotlib's defaults. Letters that the font lacks cause no warning."""
    settings: dict[Any, Any] = {
        key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")
    }
    settings.update(STYLE)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def finished(
    name: str, title: str, caption: str, figure: Figure, tips: Mapping[str, str], png: bool
) -> Chart:
    """Turn a figure into a chart. ``tips`` are the tooltips of its groups, by their ids."""
    # Ids that are the same each time, and differ between charts.
    mpl.rcParams["svg.hashsalt"] = name
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = inlined(text.getvalue(), name, f"{title}. {caption}", tips)
    picture = io.BytesIO()
    if png:
        figure.savefig(picture, format="png", dpi=PNG_DPI, facecolor=PAPER)
    return Chart(name, title, caption, svg, picture.getvalue() or None)


def inlined(text: str, name: str, title: str, tips: Mapping[str, str]) -> str:
    """Return the SVG element of a chart, which loads nothing and follows light and dark mode.

    ``name`` makes its ids unique on the page, a screen reader says ``title``, and ``tips`` are the
    tooltips of its groups by their ids.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = _TAG.sub(lambda tag: _tag(tag[0], tips), text)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None  # matplotlib always writes one
    label = f'<title id="title-{name}">{escape(title)}</title>'
    root = f'role="img" aria-labelledby="title-{name}" focusable="false"'
    return f'<svg viewBox="{box[1]}" {root}>{label}' + text[text.index(">") + 1 :]


def _tag(tag: str, tips: Mapping[str, str]) -> str:
    """Rewrite one tag. Text between tags stays as it is, since it may be the name of a run."""
    tag = tag.replace("xlink:href", "href")
    tag = _LONG.sub(r"\1", _COLOR.sub(lambda color: _VARIABLES[color[0]], tag))
    group = re.fullmatch(r'<g id="([^"]*)"(/?)>', tag)
    if group is None:
        return tag
    # Without its id, since the ids of groups repeat from chart to chart.
    tag = f"<g{group[2]}>"
    if group[1] in tips:
        tag += f"<title>{escape(tips[group[1]])}</title>"
    return tag


def fitted(text: str, num_letters: int) -> str:
    """Shorten ``text`` to ``num_letters`` by leaving out its middle."""
    if len(text) <= num_letters:
        return text
    head = num_letters * 2 // 3
    return f"{text[:head]}…{text[len(text) - (num_letters - head - 1) :]}"


def panel(inner: float, top: float, left: float, bottom: float) -> tuple[Figure, Axes]:
    """Return a figure with axes of height ``inner`` and these margins, all in units."""
    height = top + inner + bottom
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    width = 1 - (left + EDGE) / WIDTH
    axes = figure.add_axes((left / WIDTH, bottom / height, width, inner / height))
    return figure, axes


def legend(figure: Figure, handles: Sequence[Any], texts: Sequence[str], **options: Any) -> None:
    """Draw a legend, for which ``options`` give the place and the number of columns."""
    room = 58 if options["ncols"] == 1 else 28  # letters
    shown = [fitted(text, room) for text in texts]
    spaces: dict[str, Any] = {"handletextpad": 0.4, "labelspacing": 0.35, "borderaxespad": 0.2}
    figure.legend(handles, shown, fontsize=9.5, **spaces, **options)
