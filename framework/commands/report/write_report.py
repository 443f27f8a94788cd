"""From directories to a page: find, compare, draw, write."""

import os
from collections.abc import Sequence
from pathlib import Path
from time import strftime
from typing import NamedTuple

from framework.commands.report.compare_runs import labels, relative
from framework.commands.report.draw import charts
from framework.commands.report.find_runs import find
from framework.commands.report.json_values import shown
from framework.commands.report.page import page
from framework.commands.report.recorded_run import RecordedRun
from framework.errors import ConfigError
from framework.system.durable import open_durable, write_text

RELATIVE = ("first", "slowest")


class Written(NamedTuple):
    """``page``: the HTML file; ``pictures``: of its charts, beside it."""

    page: Path
    pictures: list[Path]
    num_runs: int


def write_report(
    paths: Sequence[str], output: Path, relative_to: str = "first", png: bool = True
) -> Written:
    """One page about all that is found at ``paths``. ``relative_to``: whose time is 1, the first's or the slowest's.

    ConfigError C175 for another word, C176 for an ``output`` that does not end in .html; DataError D175 to D177 for paths without runs;
    ResourceError R101 where nothing can be written.
    """
    if relative_to not in RELATIVE:
        raise ConfigError(
            175,
            f"relative = {relative_to}",
            "not whose time can be 1",
            f"choose {' or '.join(RELATIVE)}",
        )
    if output.suffix != ".html":
        raise ConfigError(
            176, f"page = {output}", "not a name for a page", "give one that ends in .html"
        )
    runs = find(paths)
    names, compared = labels(runs), relative(runs, relative_to)
    drawn = charts(runs, names, compared, png)
    write_text(
        output, page(runs, names, compared, drawn, title(paths, runs), strftime("%Y-%m-%d %H:%M"))
    )
    pictures: list[Path] = []
    for chart in drawn:
        if chart.png is not None:
            pictures.append(output.with_name(f"{output.stem}-{chart.name}.png"))
            with open_durable(pictures[-1]) as file:
                file.write(chart.png)
    return Written(output, pictures, len(runs))


def title(paths: Sequence[str], runs: Sequence[RecordedRun]) -> str:
    """What the page is about."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths}
    if len(paths) > 1 and len(folders) > 1:
        return f"{len(runs)} runs of {len(paths)} places"
    here = shown(os.path.basename(folders.pop() if len(paths) > 1 else os.path.abspath(paths[0])))
    if runs[0].kind == "cell":
        return f"Bench {here}"
    return f"Run {here}" if len(runs) == 1 else f"Sweep {here}"
