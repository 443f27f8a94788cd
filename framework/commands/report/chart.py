"""What every chart shares: its size, its style, its legend, and how it becomes an SVG for the page and a PNG for a README.

A chart is 420 units wide: so it can be read on a phone, and two stand beside each other on a screen.
"""

import io
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from framework.commands.report.palette import GRID, INK, MUTED, PAPER
from framework.commands.report.svg import inlined

WIDTH, EDGE = 420.0, 10.0  # units of the SVG; of a PNG 1/72 inch
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


class Chart(NamedTuple):
    """``name``: of its files. ``title``, ``caption``: plain text. ``svg``: an element, what was written by others escaped. ``png``: None
    where none was asked for.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes | None


@contextmanager
def styled() -> Generator[None, None, None]:
    """Defaults of matplotlib and ``STYLE``, whatever the user's own file says; letters that its font lacks are no warning."""
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
    """``tips``: what the group of an id is, for who points at it."""
    mpl.rcParams["svg.hashsalt"] = (
        name  # ids that are the same each time, and differ between charts
    )
    text, picture = io.StringIO(), io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    if png:
        figure.savefig(picture, format="png", dpi=PNG_DPI, facecolor=PAPER)
    return Chart(
        name,
        title,
        caption,
        inlined(text.getvalue(), name, f"{title}. {caption}", tips),
        picture.getvalue() if png else None,
    )


def fitted(text: str, num_letters: int) -> str:
    """``text``, its middle left out where it is too long."""
    if len(text) <= num_letters:
        return text
    head = num_letters * 2 // 3
    return f"{text[:head]}…{text[len(text) - (num_letters - head - 1) :]}"


def legend(
    figure: Figure, handles: Sequence[Any], texts: Sequence[str], at_top: bool, columns: int
) -> None:
    """Below the axes, or above them; ``columns``: of entries. None where there are no ``texts``."""
    if not texts:
        return
    room = 58 if columns == 1 else 28
    corner: dict[str, Any] = (
        {"loc": "upper left", "bbox_to_anchor": (0.0, 1.0)}
        if at_top
        else {"loc": "lower left", "bbox_to_anchor": (0.1, 0.0)}
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
