"""Turn an SVG file of matplotlib into an element of the page.

Its colors follow light and dark mode, its parts have tooltips, and it loads nothing from elsewhere.
"""

import re
from collections.abc import Mapping
from html import escape

from framework.commands.report.palette import COLORS

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in COLORS.items()}
_TAG = re.compile(r"<[^>]*>")
_COLOR = re.compile("|".join(map(re.escape, _VARIABLES)))
_LONG = re.compile(r"(\.\d{2})\d+")


def inlined(text: str, name: str, title: str, tips: Mapping[str, str]) -> str:
    """Return the SVG element of a chart.

    Args:
        text: The whole SVG file.
        name: The chart's name, which makes its ids unique on the page.
        title: What a screen reader says.
        tips: The tooltip of each group, by the id of the group.

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
