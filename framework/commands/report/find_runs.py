"""Where runs and benches are, below what was named."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from framework.commands.report.bench_file import is_bench, read_bench
from framework.commands.report.read_run import is_run, read_run
from framework.commands.report.recorded_run import RecordedRun
from framework.errors import DataError


def find(paths: Sequence[str]) -> list[RecordedRun]:
    """The runs and cells of ``paths``, each once, in the order of their names within each path.

    DataError D175 where there is no such path, D176 where there is nothing in it, D177 for a file that is no bench's.
    """
    found: list[RecordedRun] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(
                175,
                str(path),
                "no such file or directory",
                "name a run, a sweep, or a file of paceline bench",
            )
        if path.is_file() and not is_bench(path):
            what = "not a file of paceline bench (its first line is none)"
            raise DataError(
                177, str(path), what, "name such a file, or the directory of a run or a sweep"
            )
        places = list(_places(path))
        new = [place for place in places if place.resolve() not in seen]
        seen |= {place.resolve() for place in new}
        runs = [
            run
            for place in new
            for run in ([read_run(place)] if place.is_dir() else read_bench(place))
        ]
        if not places or (path.is_file() and new and not runs):
            what = "no run, sweep or bench is in it"
            raise DataError(176, str(path), what, "name one, such as a directory below outputs")
        found += runs
    return found


def _places(path: Path) -> Iterator[Path]:
    """Runs' directories and bench files at or below ``path``. Links are not followed, and runs not searched."""
    if path.is_file() or is_run(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort(key=natural)
        runs = [name for name in folders if is_run(Path(folder, name))]
        yield from (Path(folder, name) for name in runs)
        yield from (
            Path(folder, n)
            for n in sorted(files, key=natural)
            if n.endswith(".jsonl") and is_bench(Path(folder, n))
        )
        folders[:] = [name for name in folders if name not in runs]


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names by, that has 10 after 9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
