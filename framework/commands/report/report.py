"""``paceline report DIR [DIR ...]``: write one page about runs, sweeps and benches."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from framework.cli.arguments import plain_words_alone, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.cli.units import plural
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError, PacelineError, say, words_of
from framework.system.extras import needed
from framework.system.stopping import message_if_stopped

RULES = {
    "dirs": Rule(list[str], means="a list of paths"),
    "page": Rule(str | None, means="a path"),
    "png": Rule(bool),
}


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are paths."""
    if not arguments:
        fix = "name runs, sweeps or bench files: paceline report DIR [DIR ...]"
        raise ConfigError(103, "dirs", "must be given", fix)
    if arguments[:1] != ["-sc"] and (plain := plain_words_alone(arguments, "dirs")):
        dirs = f"dirs=[{','.join(map(quoted, plain))}]"
        arguments = [*(word for word in arguments if word not in plain), dirs]
    return run_app("report", arguments, lambda cfg: told(partial(_report, cfg)))


def _report(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config = resolved(cfg)
    check_values(config, RULES)
    dirs = config["dirs"]
    if not dirs:
        fix = "give 'paceline report DIR [DIR ...]'"
        raise ConfigError(101, f"dirs = {dirs}", "names nothing", fix)
    page = Path(config["page"] or _usual_page(dirs, run_dir))
    with message_if_stopped("stopped{by}: the report is not complete"):
        write(dirs, page, str(config["relative"]), config["png"])
    return RunOutcome(0, "written")


def _usual_page(dirs: Sequence[str], run_dir: Path) -> Path:
    """Return the place of a page: with the run or bench, or in ``run_dir`` for several."""
    first = Path(dirs[0])
    if len(dirs) > 1:
        return run_dir / "report.html"
    if first.is_file():  # a bench file
        return first.with_suffix(".html")
    return first / "report.html"


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
