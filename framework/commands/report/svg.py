"""matplotlib's SVG -> an element for the page: its colors follow light and dark, its parts have names, and nothing in it points elsewhere."""

import re
from collections.abc import Mapping
from html import escape

from framework.commands.report.palette import COLORS

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in COLORS.items()}
_TAG = re.compile(r"<[^>]*>")
_COLOR = re.compile("|".join(map(re.escape, _VARIABLES)))
_LONG = re.compile(r"(\.\d{2})\d+")


def inlined(text: str, name: str, title: str, tips: Mapping[str, str]) -> str:
    """``text``: a whole SVG file. ``name``: of the chart, for ids. ``tips``: what to say when one points at the group of that id."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = _TAG.sub(lambda tag: _tag(tag[0], tips), text)
    box = re.search(r'viewBox="([^"]*)"', text)
    label = f'<title id="title-{name}">{escape(title)}</title>'
    root = f'<svg viewBox="{box[1] if box else ""}" role="img" aria-labelledby="title-{name}" focusable="false">{label}'
    return root + text[text.index(">") + 1 :]


def _tag(tag: str, tips: Mapping[str, str]) -> str:
    """One tag; what stands between tags is left as it is: it may be a run's name."""
    tag = tag.replace("xlink:href", "href")
    tag = _LONG.sub(r"\1", _COLOR.sub(lambda color: _VARIABLES[color[0]], tag))
    group = re.fullmatch(r'<g id="([^"]*)"(/?)>', tag)
    if group is None:
        return tag
    tip = f"<title>{escape(tips[group[1]])}</title>" if group[1] in tips else ""
    return f"<g{group[2]}>{tip}"  # without its id: those of groups repeat from chart to chart
