"""Pages of HTML that load nothing from elsewhere, and the colors and the style of their charts.

Source of the colors: M. Okabe and K. Ito, Color Universal Design, 2008. Purple and gray replace
their yellow, which is hard to see on white, and their black.
"""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from framework import __version__

SHARED = Path(__file__).parent / "templates"  # the style, and what pages have in common
# name: (on a light page, on a dark page). A chart finds the light colors in the text of its SVG,
# so no two of them are equal.
COLORS = {
    "paper": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#59626d", "#a6aeb8"),
    "grid": ("#dde2e7", "#31373f"),
    "blue": ("#0072b2", "#3f9fe0"),
    "vermillion": ("#d55e00", "#f4732a"),
    "green": ("#009e73", "#22b88d"),
    "pink": ("#cc79a7", "#e29ac2"),
    "orange": ("#e69f00", "#f2b233"),
    "sky": ("#56b4e9", "#9bd8fb"),
    "purple": ("#4b0f5c", "#8f5fd0"),
    "gray": ("#6e7681", "#8b949e"),
}
PAPER, INK, MUTED, GRID = (COLORS[name][0] for name in ("paper", "ink", "muted", "grid"))
OF_SPAN = {"idle": "vermillion", "wait": "vermillion", "copy": "orange", "forward": "blue"}
OF_SPAN.update(backward="sky", exchange="purple", optimizer="green", report="gray")
OF_RUN = ("blue", "vermillion", "green", "orange", "pink", "sky", "purple", "gray")
STYLE = {
    "font.sans-serif": ["DejaVu Sans"],
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a run may be called $x$
    "text.hinting": "none",  # half the time of a picture, and not seen at this size
    **dict.fromkeys(("svg.fonttype", "axes.facecolor", "figure.facecolor"), "none"),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "lines.scale_dashes": False,
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), GRID),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("text.color", "legend.labelcolor"), INK),
}


def of_run(number: int) -> str:
    """Return the light color of run ``number``. After eight runs the colors repeat."""
    return COLORS[OF_RUN[number % len(OF_RUN)]][0]


@contextmanager
def styled() -> Generator[None]:
    """Use our style over matplotlib's defaults. Letters that the font lacks cause no warning."""
    import matplotlib as mpl  # noqa: PLC0415  # of an extra

    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE}
    del settings["backend"]
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rendered(template: Path, **values: Any) -> str:
    """Return the HTML. Every value is escaped unless it is Markup."""
    loader = jinja2.FileSystemLoader([template.parent, SHARED])
    pages = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    pages.trim_blocks = pages.lstrip_blocks = True
    style = Markup((SHARED / "style.css").read_text(encoding="utf-8"))  # noqa: S704  # our own file
    page = pages.get_template(template.name)
    return page.render(version=__version__, colors=COLORS, style=style, **values)
