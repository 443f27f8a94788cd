"""Write the page: one HTML file that loads nothing from elsewhere, and pictures of its charts."""

import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from time import strftime
from typing import NamedTuple

from markupsafe import Markup

from framework.cli.pages import rendered
from framework.commands.report import page_values
from framework.commands.report.charts import draw_charts
from framework.commands.report.recorded_runs import RecordedRun, find_runs
from framework.errors import ConfigError
from framework.system.durable import write_bytes, write_text
from framework.system.run_dir import shown

TEMPLATES = Path(__file__).parent / "templates"
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

    ConfigError C175 for an unknown ``relative_to``, C176 if ``output`` is no .html file.
    """
    if relative_to not in RELATIVE:
        fix = f"choose {' or '.join(RELATIVE)}"
        raise ConfigError(175, f"relative = {relative_to}", "does not name a run", fix)
    if output.suffix != ".html":
        fix = "give a name that ends in .html"
        raise ConfigError(176, f"page = {output}", "does not name a page", fix)
    runs = find_runs(paths)
    names = page_values.labels(runs)
    compared = page_values.relative(runs, relative_to)
    charts = draw_charts(runs, names, compared, png)
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    html = rendered(
        TEMPLATES / "report.html",
        title=_title(paths, runs),
        written=strftime("%Y-%m-%d %H:%M"),
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        names=names,
        runs=runs,
        cards=page_values.cards(runs, names),
        remarks=page_values.remarks(runs),
        commands=page_values.together(
            (run.command, n) for n, run in enumerate(runs) if run.command
        ),
        charts=[chart._replace(svg=Markup(chart.svg)) for chart in charts],  # noqa: S704  # escaped
        tables=page_values.tables(runs, names, compared),
        changes=page_values.differences([run.config for run in runs]),
        machines=page_values.machines(runs),
    )
    write_text(output, html)
    pictures: list[Path] = []
    for chart in charts:
        if chart.png is not None:
            pictures.append(output.with_name(f"{output.stem}-{chart.name}.png"))
            write_bytes(pictures[-1], chart.png)
    return Written(output, pictures, len(runs))


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
