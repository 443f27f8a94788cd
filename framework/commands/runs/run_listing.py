"""Read what a folder's runs are: status, choices, best metrics, time and disk use."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from framework.commands.report.read_run import typed_choices
from framework.commands.report.recorded_run import RecordedRun
from framework.commands.runs.run_state import RunState, state_of
from framework.errors import ConfigError
from framework.system.json_values import flat, number, numbers, parsed, positive, shown
from framework.system.run_dir import (
    ENDED,
    FACTS,
    REPORTS,
    SUMMARY,
    is_run,
    newest_config,
    open_file,
    read_object,
)

# Where MLflow keeps copies of a run's files, as in mlruns/1/<id>/artifacts.
COPIES = re.compile(r"[0-9a-f]{32}/artifacts")
TAIL_BYTES = 64 << 10  # of metrics.jsonl


@dataclass(frozen=True)
class ListedRun:
    """One run directory.

    Attributes:
        path: The directory.
        state: How the run is doing.
        started: When it was started or resumed, as it was written.
        steps: Optimizer steps so far.
        time_s: Seconds since the last start until the end or the last report; None if unknown.
        disk_bytes: What the directory uses.
        best: Metrics of the best validation.
        val: Metrics of the last validation.
        recorded: Choices as typed, and the configuration by dotted names.
    """

    path: Path
    state: RunState
    started: str
    steps: int | None
    time_s: float | None
    disk_bytes: int
    best: Mapping[str, float]
    val: Mapping[str, float]
    recorded: RecordedRun


def listed_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in and below a folder, by path. ConfigError C373 if it is no folder."""
    if not folder.is_dir():
        fix = "give the folder of runs: paceline runs FOLDER"
        raise ConfigError(373, f"folder = {folder}", "no such folder", fix)
    return [read_listed(path) for path in run_dirs(folder)]


def run_dirs(folder: Path) -> Iterator[Path]:
    """Yield the run directories in and below a folder, in order.

    Links are not followed, and copies that MLflow made are no runs.
    """
    for place, folders, _ in os.walk(folder):
        path = Path(place)
        if is_run(path):
            folders.clear()
            yield path
        folders[:] = sorted(
            name
            for name in folders
            if ".tmp." not in name and not COPIES.fullmatch(f"{path.name}/{name}")
        )


def read_listed(path: Path) -> ListedRun:
    """Read one run directory. What cannot be read is left out."""
    facts = read_object(path / FACTS)
    summary = read_object(path / SUMMARY)
    ended = read_object(path / ENDED)
    log = {} if summary else _last_reports(path / REPORTS)
    steps = (
        positive(of.get(key)) for of, key in ((summary, "steps"), (log, "step"), (ended, "step"))
    )
    best, val = (numbers(flat(summary.get(key))) for key in ("best", "val"))
    started = shown(facts.get("started", ""))
    recorded = RecordedRun(
        name=shown(path.name),
        place=shown(str(path)),
        choices=typed_choices(facts),
        config=flat(read_object(newest_config(path))),
    )
    return ListedRun(
        path=path,
        state=state_of(path, facts, summary, ended),
        started=started,
        steps=next((int(step) for step in steps if step is not None), None),
        time_s=positive(summary.get("wall_s")) or _seconds(path, started),
        disk_bytes=disk_bytes(path),
        best=_by_name(best),
        val=_by_name(val or numbers(log.get("val"))),
        recorded=recorded,
    )


def _tail(path: Path) -> bytes:
    """Return the last bytes of a file; none if it cannot be read."""
    with suppress(OSError), open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES)
    return b""


def _last_reports(path: Path) -> dict[str, Any]:
    """Return the last step of a log, and the last validation, if they stand near its end."""
    log: dict[str, Any] = {}
    for line in map(parsed, _tail(path).splitlines()):
        step = number(line.get("step"))
        if step is None or not 0 <= step < 1 << 53:
            continue
        log["step"] = step
        split = shown(line.get("split", ""))
        if split.startswith("val"):  # ``val.clean`` is one of several sets
            name_of_set = split.removeprefix("val").removeprefix(".")
            names = list(line)
            means = names[: names.index("lr")] if "lr" in names else []
            known = {f"{name_of_set}.{name}".removeprefix("."): line[name] for name in means}
            log["val"] = {**log.get("val", {}), **known}
    return log


def _seconds(path: Path, started: str) -> float | None:
    """Return the seconds from the start to the last report."""
    with suppress(ValueError, OSError, OverflowError):
        begin = datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        return positive((path / REPORTS).lstat().st_mtime - begin)
    return None


def _by_name(values: Mapping[str, float]) -> dict[str, float]:
    names = {name: name.rpartition(".")[2] for name in values}
    return {shown(n): value for n, value in values.items() if names[n] not in ("step", "epoch")}


def disk_bytes(path: Path) -> int:
    """Return the bytes that a directory uses on disk, without what its links lead to."""
    total = 0
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(OSError):
                total += 512 * os.lstat(os.path.join(place, name)).st_blocks
    return total
