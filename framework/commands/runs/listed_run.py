"""Read what a run directory says of its run: status, choices, best metrics, time and disk use."""

import fcntl
import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from framework.cli.run_choices import typed_choices
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED
from framework.system.run_dir import (
    ENDED,
    FACTS,
    REPORTS,
    SUMMARY,
    flat,
    is_run,
    newest_config,
    number,
    numbers,
    open_file,
    parsed,
    read_object,
    shown,
)

# Where MLflow keeps copies of a run's files, as in mlruns/1/<id>/artifacts.
COPIES = re.compile(r"[0-9a-f]{32}/artifacts")
TAIL_BYTES = 64 << 10  # of metrics.jsonl
LOCK = "run.lock"
# A run on another host may hold a lock that is not seen here. If it wrote within this time, it is
# taken to be running.
RECENT_S = 3600.0


@dataclass(frozen=True)
class ListedRun:
    """One run directory.

    Attributes:
        path: The directory.
        name: The name of the directory.
        status: running, finished, interrupted, failed, killed or damaged.
        code: The exit code; None if no end is recorded.
        reason: Why it failed, or which process is running it.
        started: When it was started or resumed, as it was written.
        steps: Optimizer steps so far.
        time_s: Seconds since the last start until the end or the last report; None if unknown.
        disk_bytes: What the directory uses.
        best: Metrics of the best validation.
        val: Metrics of the last validation.
        choices: The options as typed.
        config: The configuration by dotted names.
    """

    path: Path
    name: str
    status: str
    code: int | None
    reason: str
    started: str
    steps: int | None
    time_s: float | None
    disk_bytes: int
    best: Mapping[str, float]
    val: Mapping[str, float]
    choices: Mapping[str, str]
    config: Mapping[str, Any]

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.best or self.val


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
    started = shown(facts.get("started", ""))
    time_s = number(summary.get("wall_s"))
    if time_s is None:
        with suppress(ValueError, OSError):
            begin = datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
            time_s = max(0.0, (path / REPORTS).lstat().st_mtime - begin)
    steps = number(summary.get("steps", log.get("step", ended.get("step"))))
    status, code, reason = _status(path, facts, summary, ended)
    best, val = (_metrics(summary.get(key) or log.get(key)) for key in ("best", "val"))
    return ListedRun(
        path=path,
        name=shown(path.name),
        status=status,
        code=code,
        reason=reason,
        started=started,
        steps=None if steps is None else int(steps),
        time_s=time_s,
        disk_bytes=_disk_bytes(path),
        best=best,
        val=val,
        choices=typed_choices(facts),
        config=flat(read_object(newest_config(path))),
    )


def _last_reports(path: Path) -> dict[str, Any]:
    """Return the last step of a log, and the last validation, if they stand near its end."""
    tail = b""
    with suppress(OSError), open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        tail = file.read()
    log: dict[str, Any] = {"val": {}}
    for line in map(parsed, tail.splitlines()):
        if not isinstance(line.get("step"), int):
            continue
        log["step"] = line["step"]
        split = shown(line.get("split", ""))
        if split.startswith("val") and "lr" in line:  # ``val.clean`` is one of several sets
            names = [*line]
            for name in names[names.index("split") + 1 : names.index("lr")]:
                log["val"][f"{split[4:]}.{name}".removeprefix(".")] = line[name]
    return log


def _metrics(block: Any) -> dict[str, float]:
    """Return the means of a validation alone, without its step and epoch."""
    values = numbers(flat(block)).items()
    return {n: value for n, value in values if n.rpartition(".")[2] not in ("step", "epoch")}


def _disk_bytes(path: Path) -> int:
    """Return the bytes that a directory uses on disk, without what its links lead to."""
    total = 0
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(OSError):
                total += 512 * os.lstat(os.path.join(place, name)).st_blocks
    return total


def _status(
    path: Path, facts: Mapping[str, Any], summary: Mapping[str, Any], ended: Mapping[str, Any]
) -> tuple[str, int | None, str]:
    """Return status, exit code and reason, from the lock of a run and the objects in its files."""
    if owner := running_by(path):
        return "running", None, owner
    code = ended.get("code")
    if not facts:
        return "damaged", None, "run.json cannot be read"
    if code is None and os.path.lexists(path / ENDED):
        return "damaged", None, "exit.json cannot be read"
    if code == 0 and not summary:
        return "damaged", None, "summary.json cannot be read"
    if code is None:
        return "killed", None, "its end was not recorded"
    status = "failed"
    if code == 0:
        status = "finished"
    elif code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        status = "interrupted"
    return status, code, shown(ended.get("reason", ""))


def running_by(path: Path) -> str:
    """Return which process is running a run, or "" if none is.

    A lock that is held says so. A lock that was left behind by another host, and a directory
    without a lock and an end, count if the run has written within the last hour: not every shared
    folder passes on the locks of other hosts.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        if not os.path.lexists(path / ENDED) and _wrote_recently(path):
            return "a process that cannot be seen from here"
        return ""
    except OSError:  # a link or a folder is no lock of ours
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        owner = shown(os.read(descriptor, 200).decode(errors="replace"))
        # A file system without locks raises another OSError: nobody holds one there.
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return owner or "another process"
    finally:
        os.close(descriptor)
    host = re.fullmatch(r"process \d+ on (\S+) since .*", owner)
    is_foreign = host is not None and host[1] != socket.gethostname()
    return owner if is_foreign and _wrote_recently(path) else ""


def _wrote_recently(path: Path) -> bool:
    """Return whether a run has written to one of its files within the last hour."""
    latest = 0.0
    for folder in (path, path / "checkpoints"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    latest = max(latest, entry.stat(follow_symlinks=False).st_mtime)
    return time.time() - latest < RECENT_S
