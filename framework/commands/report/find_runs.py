"""Find the runs and benches at or below some paths."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from framework.commands.report.bench_file import is_bench, read_bench
from framework.commands.report.read_run import is_run, read_run
from framework.commands.report.recorded_run import RecordedRun
from framework.errors import DataError


def find(paths: Sequence[str]) -> list[RecordedRun]:
    """Return the runs and cells of ``paths``, each once, sorted by name within each path.

    Raises:
        DataError: D175 (no such path), D176 (no runs in a path), D177 (no bench file).
    """
    runs: list[RecordedRun] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
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
            added += [read_run(place)] if place.is_dir() else read_bench(place)
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
