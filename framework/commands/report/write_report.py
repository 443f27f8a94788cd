"""Write the page: find the runs, compare them, draw them."""

import os
from collections.abc import Sequence
from pathlib import Path
from time import strftime
from typing import NamedTuple

from framework.commands.report.bars import spans_chart, times_chart
from framework.commands.report.chart import Chart, styled
from framework.commands.report.compare_runs import Relative, labels, relative
from framework.commands.report.curves import curve_charts
from framework.commands.report.find_runs import find
from framework.commands.report.json_values import shown
from framework.commands.report.page import page
from framework.commands.report.recorded_run import RecordedRun
from framework.errors import ConfigError
from framework.system.durable import open_durable, write_text

RELATIVE = ("first", "slowest")


class Written(NamedTuple):
    """The HTML file, and the pictures of its charts beside it."""

    page: Path
    pictures: list[Path]
    num_runs: int


def write_report(
    paths: Sequence[str], output: Path, relative_to: str = "first", png: bool = True
) -> Written:
    """Write one page about all runs at ``paths``; ``relative_to`` names the run whose time is 1.

    Raises:
        ConfigError: C175 for an unknown ``relative_to``, C176 if ``output`` is no .html file.
    """
    if relative_to not in RELATIVE:
        fix = f"choose {' or '.join(RELATIVE)}"
        raise ConfigError(175, f"relative = {relative_to}", "does not name a run", fix)
    if output.suffix != ".html":
        fix = "give a name that ends in .html"
        raise ConfigError(176, f"page = {output}", "does not name a page", fix)
    runs = find(paths)
    names = labels(runs)
    compared = relative(runs, relative_to)
    drawn = charts(runs, names, compared, png)
    now = strftime("%Y-%m-%d %H:%M")
    write_text(output, page(runs, names, compared, drawn, _title(paths, runs), now))
    pictures: list[Path] = []
    for chart in drawn:
        if chart.png is not None:
            picture = output.with_name(f"{output.stem}-{chart.name}.png")
            with open_durable(picture) as file:
                file.write(chart.png)
            pictures.append(picture)
    return Written(output, pictures, len(runs))


def charts(
    runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative, png: bool
) -> list[Chart]:
    """Draw the charts that have something to show, with ``png`` as pictures too."""
    with styled():
        bars = (times_chart(runs, names, compared, png), spans_chart(runs, names, png))
        return [*filter(None, bars), *curve_charts(runs, names, png)]


def _title(paths: Sequence[str], runs: Sequence[RecordedRun]) -> str:
    places = {os.path.abspath(path) for path in paths}
    if len(paths) > 1:
        places = {os.path.dirname(place) for place in places}
    if len(places) > 1:
        return f"{len(runs)} runs of {len(paths)} places"
    kind = "Sweep"
    if runs[0].kind == "cell":
        kind = "Bench"
    elif len(runs) == 1:
        kind = "Run"
    return f"{kind} {shown(os.path.basename(places.pop()))}"
