"""``paceline report DIR [DIR ...]``: write one page about runs, sweeps and benches."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from framework.cli.options import option, run_options
from framework.cli.outcome import RunOutcome
from framework.cli.tables import plural
from framework.errors import ConfigError, PacelineError, say, words_of
from framework.system.extras import needed
from framework.system.stopping import message_if_stopped


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
        "first", "whose time is 1 in the chart of relative times: first, or slowest"
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
        write(dirs, Path(options.page or page), options.relative, options.png)
    return RunOutcome(0, "written")


def write(dirs: Sequence[str], output: Path, relative: str = "first", png: bool = True) -> None:
    """Write the report and print its path. ResourceError R112 if the extra is not installed."""
    needed("matplotlib", "report")
    needed("jinja2", "report")
    from framework.commands.report.write_report import write_report  # noqa: PLC0415  # draws

    written = write_report(dirs, output, relative, png)
    what = plural(written.num_runs, "run")
    if written.pictures:
        what += f", and {plural(len(written.pictures), 'picture')} beside it"
    say(f"report: {written.page}  ({what})")


def sweep_report(run_dirs: Sequence[Path]) -> None:
    """Write the report of a finished sweep. If this fails, print why: the runs matter more."""
    sweep_dir = Path(os.path.commonpath([run_dir.parent for run_dir in run_dirs]))
    try:
        write([str(run_dir) for run_dir in run_dirs], sweep_dir / "report.html")
    except Exception as error:  # noqa: BLE001
        why = words_of(error)
        if not isinstance(error, PacelineError):
            why = f"{type(error).__name__} {why}"
        say(f"no report was written ({why}); try: paceline report {sweep_dir}", sys.stderr)
