"""``paceline report DIR [DIR ...]``: write one page about runs, sweeps and benches."""

import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import strftime

from framework.cli.options import option, run_options
from framework.cli.outcome import RunOutcome
from framework.cli.tables import plural
from framework.errors import ConfigError, say
from framework.system.durable import write_bytes, write_text
from framework.system.extras import needed
from framework.system.run_dir import shown
from framework.system.stopping import message_if_stopped

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ReportOptions:
    """Write one page of runs, sweeps and benches: where the time went, what was learned."""

    dirs: list[str] = option(
        about="runs, sweeps and bench files; 'paceline report DIR ...' is short for dirs=[DIR,...]",
        means="a list of paths",
    )
    page: str | None = option(
        None,
        "where it goes; null: report.html in the one directory given, beside the bench file given, "
        "or below outputs/report",
        means="a path",
    )
    relative: str = option(
        "first",
        "whose time is 1 in the chart of relative times: first, or slowest",
        choices=("first", "slowest"),
        number=175,
    )
    png: bool = option(True, "also each chart as a picture beside the page, for a README")


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not options are paths."""
    if not arguments:
        fix = "name runs, sweeps or bench files: paceline report DIR [DIR ...]"
        raise ConfigError(103, "dirs", "must be given", fix)
    return run_options("report", arguments, ReportOptions, _report, "dirs")


def _report(options: ReportOptions, run_dir: Path) -> RunOutcome:
    dirs = options.dirs
    if not dirs:
        fix = "give 'paceline report DIR [DIR ...]'"
        raise ConfigError(101, f"dirs = {dirs}", "names nothing", fix)
    first = Path(dirs[0])
    page = first / "report.html"
    if len(dirs) > 1:
        page = run_dir / "report.html"
    elif first.is_file():  # a bench file
        page = first.with_suffix(".html")
    with message_if_stopped("stopped{by}: the report is not complete"):
        write_report(dirs, Path(options.page or page), options.relative, options.png)
    return RunOutcome(0, "written")


def write_report(
    paths: Sequence[str], output: Path, relative: str = "first", png: bool = True
) -> None:
    """Write one page about all runs at ``paths`` and pictures beside it, and print its path.

    ``relative`` names the run whose time is 1. ConfigError C176 if ``output`` is no .html file,
    ResourceError R112 if the extra is not installed.
    """
    if output.suffix != ".html":
        fix = "give a name that ends in .html"
        raise ConfigError(176, f"page = {output}", "does not name a page", fix)
    needed("matplotlib", "report")
    needed("jinja2", "report")
    from markupsafe import Markup  # noqa: PLC0415

    from framework.cli.pages import rendered  # noqa: PLC0415
    from framework.commands.report import page_values  # noqa: PLC0415
    from framework.commands.report.charts import draw_charts  # noqa: PLC0415
    from framework.commands.report.recorded_runs import find_runs  # noqa: PLC0415

    runs = find_runs(paths)
    names = page_values.labels(runs)
    compared = page_values.relative(runs, relative)
    charts = draw_charts(runs, names, compared, png)
    places = {os.path.abspath(path) for path in paths}
    if len(paths) > 1:
        places = {os.path.dirname(place) for place in places}
    kind = "Sweep"
    if runs[0].kind == "cell":
        kind = "Bench"
    elif len(runs) == 1:
        kind = "Run"
    title = f"{kind} {shown(os.path.basename(min(places)))}"
    if len(places) > 1:
        title = f"{len(runs)} runs of {len(paths)} places"
    commands = ((run.command, n) for n, run in enumerate(runs) if run.command)
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")  # sorts the tables
    html = rendered(
        TEMPLATES / "report.html",
        title=title,
        written=strftime("%Y-%m-%d %H:%M"),
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        names=names,
        runs=runs,
        cards=page_values.cards(runs, names),
        remarks=page_values.remarks(runs),
        commands=page_values.together(commands),
        charts=[chart._replace(svg=Markup(chart.svg)) for chart in charts],  # noqa: S704  # escaped
        tables=page_values.tables(runs, names, compared),
        changes=page_values.differences([run.config for run in runs]),
        machines=page_values.machines(runs),
    )
    write_text(output, html)
    pictures = {chart.name: chart.png for chart in charts if chart.png is not None}
    for name, picture in pictures.items():
        write_bytes(output.with_name(f"{output.stem}-{name}.png"), picture)
    what = plural(len(runs), "run")
    if pictures:
        what += f", and {plural(len(pictures), 'picture')} beside it"
    say(f"report: {output}  ({what})")
