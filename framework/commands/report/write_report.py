"""Write the page: find the runs, compare them, draw them."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import strftime
from typing import NamedTuple

from framework.commands.report.bars import spans_chart, times_chart
from framework.commands.report.bench_file import is_bench, read_bench
from framework.commands.report.chart import Chart, styled
from framework.commands.report.compare_runs import Relative, labels, relative
from framework.commands.report.curves import curve_charts
from framework.commands.report.page import page
from framework.commands.report.read_run import read_run
from framework.commands.report.recorded_run import RecordedRun
from framework.errors import CheckpointError, ConfigError, DataError, say
from framework.system.durable import open_durable, write_text
from framework.system.json_values import shown
from framework.system.run_dir import is_run

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


def find(paths: Sequence[str]) -> list[RecordedRun]:
    """Return the runs and cells of ``paths``, each once, sorted by name within each path.

    Raises:
        DataError: D175 (no such path), D176 (no runs in a path), D177 (no bench file).
    """
    runs: list[RecordedRun] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not os.path.exists(path):  # Path.exists raises for a name that is too long
            fix = "name a run, a sweep, or a file of paceline bench"
            raise DataError(175, str(path), "no such file or directory", fix)
        if path.is_file() and not is_bench(path):
            what = "is not a file of paceline bench"
            fix = "name such a file, or the directory of a run or a sweep"
            raise DataError(177, str(path), what, fix)
        places = list(_places(path))
        new = [place for place in places if place.resolve() not in seen]
        seen.update(place.resolve() for place in new)
        added: list[RecordedRun] = []
        for place in new:
            try:
                added += [read_run(place)] if place.is_dir() else read_bench(place)
            except CheckpointError as error:
                if place == path:
                    raise
                say(f"note: {place} is left out: {error}", sys.stderr)
        if not places or (path.is_file() and new and not added):
            fix = "name one, such as a directory below outputs"
            raise DataError(176, str(path), "contains no run, sweep or bench", fix)
        runs += added
    return runs


def _places(path: Path) -> Iterator[Path]:
    """Yield the runs and bench files at or below ``path``, not following links or entering runs."""
    if path.is_file() or is_run(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        runs = [name for name in sorted(folders, key=natural) if is_run(Path(folder, name))]
        tables = [name for name in sorted(files, key=natural) if name.endswith(".jsonl")]
        yield from (Path(folder, name) for name in runs)
        yield from (Path(folder, name) for name in tables if is_bench(Path(folder, name)))
        folders[:] = sorted(set(folders) - set(runs), key=natural)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 10 after 9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
