"""HTML pages that load nothing from elsewhere, made of a template and our style."""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from framework import __version__
from framework.cli.palette import COLORS

SHARED = Path(__file__).parent / "templates"  # the style, and what pages have in common


def rendered(template: Path, **values: Any) -> str:
    """Return the HTML. Every value is escaped unless it is Markup."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(
        version=__version__,
        colors=COLORS,
        style=Markup((SHARED / "style.css").read_text(encoding="utf-8")),  # noqa: S704  # our own file
        **values,
    )
