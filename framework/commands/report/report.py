"""``paceline report DIR [DIR ...]``: one page about runs, sweeps and benches."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from framework.cli.arguments import option, plain_words, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.errors import ConfigError, printable
from framework.system.stopping import reason


def main(arguments: list[str]) -> int:
    """The command; words that are not overrides are paths."""
    if not arguments:
        raise ConfigError(
            103,
            "dirs",
            "must be given",
            "name runs, sweeps or bench files: paceline report DIR [DIR ...]",
        )
    plain = plain_words(arguments)
    if arguments[:1] == ["-sc"] or not plain:
        return run_app("report", arguments, _job)
    if option(arguments, "dirs") is not None:
        raise ConfigError(100, " ".join(plain), "both words and dirs=", "give one or the other")
    dirs = f"dirs=[{','.join(map(quoted, plain))}]"
    return run_app("report", [*(word for word in arguments if word not in plain), dirs], _job)


def _job(cfg: DictConfig) -> int:
    return told(partial(_report, cfg))


def _report(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config = resolved(cfg)
    dirs, output, png = config["dirs"], config["page"], config["png"]
    if not isinstance(dirs, list) or not dirs or not all(isinstance(path, str) for path in dirs):
        raise ConfigError(
            101, f"dirs = {dirs}", "not a list of paths", "give 'paceline report DIR [DIR ...]'"
        )
    if not isinstance(output, str | None) or not isinstance(png, bool):
        raise ConfigError(
            101,
            f"page = {output}, png = {png}",
            "not values they can have",
            "give a path; true or false",
        )
    place = Path(output) if output else _place(dirs, run_dir)
    with reason("stopped{by}: the report is not whole"):
        say_written(dirs, place, str(config["relative"]), png)
    return RunOutcome(0, "written")


def _place(dirs: Sequence[str], run_dir: Path) -> Path:
    """Beside what it is about, where that is one; a bench file's bears its name."""
    only = Path(dirs[0])
    if len(dirs) > 1:
        return run_dir / "report.html"
    return only.with_suffix(".html") if only.is_file() else only / "report.html"


def say_written(
    dirs: Sequence[str], output: Path, relative: str = "first", png: bool = True
) -> None:
    """Write the report and print where it is."""
    from framework.commands.report.write_report import write_report  # noqa: PLC0415  # loads matplotlib

    written = write_report(dirs, output, relative, png)
    pictures = f", and {len(written.pictures)} pictures beside it" if written.pictures else ""
    print(printable(f"report: {written.page}  ({written.num_runs} runs{pictures})"), flush=True)


def sweep_report(run_dirs: Sequence[Path]) -> None:
    """The report of a sweep that has ended. A line where it cannot be written, never an error: the runs are what counts."""
    sweep_dir = Path(os.path.commonpath([run_dir.parent for run_dir in run_dirs]))
    try:
        say_written([str(run_dir) for run_dir in run_dirs], sweep_dir / "report.html")
    except Exception as error:  # noqa: BLE001
        words = printable(" ".join(f"{type(error).__name__} {error}".split())[:300])
        print(f"no report was written ({words}); try: paceline report {sweep_dir}", file=sys.stderr)
