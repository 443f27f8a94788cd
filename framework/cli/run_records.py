"""What a run directory says of its run: status, choices, best metrics, time and disk use."""

import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED
from framework.system import run_dir
from framework.system.portable import NO_FOLLOW, NO_WAIT, lock

# Where MLflow keeps copies of a run's files, as in mlruns/1/<id>/artifacts.
COPIES = re.compile(r"[0-9a-f]{32}/artifacts")
TAIL_BYTES = 64 << 10  # of metrics.jsonl
LOCK = "run.lock"
# A run on another host may hold a lock that is not seen here. If it wrote within this time, it is
# taken to be running.
RECENT_S = 3600.0
# Begin the overrides that only say where and how a run starts, or what it is called.
NOT_CHOICES = ("hydra.", "hydra/", "resume", "allow_targets", "tags")
OURS = ("framework.", "paceline_examples.")
UNKNOWN = "default"  # of a key that was not typed and whose value is not recorded


@dataclass(frozen=True, kw_only=True)
class ConfiguredRun:
    choices: Mapping[str, str] = field(default_factory=dict)  # as typed
    config: Mapping[str, Any] = field(default_factory=dict)  # all of them, by dotted names


@dataclass(frozen=True)
class RunRecord(ConfiguredRun):
    """One run directory. What cannot be read is empty."""

    path: Path
    name: str  # of the directory
    status: str  # running, finished, interrupted, failed, killed or damaged
    code: int | None  # the exit code; None if no end is recorded
    reason: str  # why it failed, or which process is running it
    facts: Mapping[str, Any]  # what ``run.json`` holds
    summary: Mapping[str, Any]  # what ``summary.json`` holds
    started: str  # when it was started or resumed, as it was written
    steps: int | None
    time_s: float | None  # since the last start until the end or the last report
    best: Mapping[str, float]  # metrics of the best validation
    val: Mapping[str, float]  # metrics of the last validation
    tags: Sequence[str]  # the user's

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.best or self.val

    @property
    def disk_bytes(self) -> int:
        """What the directory uses on disk, without what its links lead to."""
        total = 0
        for place, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                with suppress(OSError):
                    total += 512 * os.lstat(os.path.join(place, name)).st_blocks
        return total


def run_dirs(folder: Path) -> Iterator[Path]:
    """Yield the run directories in and below a folder, without links and MLflow's copies."""
    for place, folders, _ in os.walk(folder):
        path = Path(place)
        if run_dir.is_run(path):
            folders.clear()
            yield path
        own = (name for name in folders if not COPIES.fullmatch(f"{path.name}/{name}"))
        folders[:] = sorted(name for name in own if ".tmp." not in name)


def read_record(path: Path) -> RunRecord:
    facts = run_dir.read_object(path / run_dir.FACTS)
    summary = run_dir.read_object(path / run_dir.SUMMARY)
    ended = run_dir.read_object(path / run_dir.ENDED)
    log = {} if summary else _last_reports(path / run_dir.REPORTS)
    started = run_dir.shown(facts.get("started", ""))
    time_s = run_dir.number(summary.get("wall_s"))
    if time_s is None:
        with suppress(ValueError, OSError):
            begin = datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
            time_s = max(0.0, (path / run_dir.REPORTS).lstat().st_mtime - begin)
    steps = run_dir.number(summary.get("steps", log.get("step", ended.get("step"))))
    code = ended.get("code")
    reason = run_dir.shown(ended.get("reason", ""))
    known = {run_dir.FACTS: facts, run_dir.SUMMARY: summary or code != 0}
    known[run_dir.ENDED] = ended or not os.path.lexists(path / run_dir.ENDED)
    unread = [name for name, is_known in known.items() if not is_known]
    if owner := running_by(path):
        status, code, reason = "running", None, owner
    elif unread:
        status, code, reason = "damaged", None, f"{unread[0]} cannot be read"
    elif code is None:
        status, reason = "killed", "its end was not recorded"
    elif code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        status = "interrupted"
    else:
        status = "failed" if code else "finished"
    metrics: list[dict[str, float]] = []
    for key in ("best", "val"):  # of a validation alone, without its step and epoch
        values = run_dir.numbers(run_dir.flat(summary.get(key) or log.get(key)))
        names = [name for name in values if name.rpartition(".")[2] not in ("step", "epoch")]
        metrics.append({name: values[name] for name in names})
    choices: dict[str, str] = {}
    for word in run_dir.words(facts.get("overrides")):
        key, sign, value = word.lstrip("+~").partition("=")
        if sign and not key.startswith(NOT_CHOICES):
            choices[run_dir.shown(key)] = run_dir.shown(value)
    return RunRecord(
        path=path,
        name=run_dir.shown(path.resolve().name),
        status=status,
        code=code,
        reason=reason,
        facts=facts,
        summary=summary,
        started=started,
        steps=None if steps is None else int(steps),
        time_s=time_s,
        best=metrics[0],
        val=metrics[1],
        choices=choices,
        config=run_dir.flat(run_dir.read_object(run_dir.newest_config(path))),
        tags=list(map(run_dir.shown, run_dir.words(facts.get("tags")))),
    )


def means_of(line: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics in a line of the log: those between split and lr."""
    names = list(line)
    return names[names.index("split") + 1 : names.index("lr")]


def _last_reports(path: Path) -> dict[str, Any]:
    """Return the last step of a log, and the last validation, if they stand near its end."""
    tail = b""
    with suppress(OSError), run_dir.open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        tail = file.read()
    log: dict[str, Any] = {"val": {}}
    for line in map(run_dir.parsed, tail.splitlines()):
        if not isinstance(line.get("step"), int):
            continue
        log["step"] = line["step"]
        split = run_dir.shown(line.get("split", ""))
        if split.startswith("val") and "lr" in line:  # ``val.clean`` is one of several sets
            for name in means_of(line):
                log["val"][f"{split[4:]}.{name}".removeprefix(".")] = line[name]
    return log


def running_by(path: Path) -> str:
    """Return which process is running a run, or "" if none is.

    It holds the lock. A lock left by another host, and a directory without lock and end, count if
    the run wrote within the last hour: not every shared folder passes on the locks of other hosts.
    """
    latest = 0.0
    for folder in (path, path / "checkpoints"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    latest = max(latest, entry.stat(follow_symlinks=False).st_mtime)
    wrote_recently = time.time() - latest < RECENT_S
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | NO_WAIT | NO_FOLLOW)
    except FileNotFoundError:
        if wrote_recently and not os.path.lexists(path / run_dir.ENDED):
            return "a process that cannot be seen from here"
        return ""
    except OSError:  # a link or a folder is no lock of ours
        return ""
    owner = ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        owner = run_dir.shown(os.read(descriptor, 200).decode(errors="replace"))
        lock(descriptor, shared=True)
    except BlockingIOError:
        return owner or "another process"
    except OSError:  # of a file system without locks: nobody holds one there
        pass
    finally:
        os.close(descriptor)
    host = re.fullmatch(r"process \d+ on (\S+) since .*", owner)
    is_foreign = host is not None and host[1] != socket.gethostname()
    return owner if is_foreign and wrote_recently else ""


def varying(runs: Sequence[ConfiguredRun]) -> list[str]:
    """Return the keys whose choice differs between the runs, and the user's ``vars`` that do."""
    keys = dict.fromkeys(key for run in runs for key in run.choices)
    own = (key for run in runs for key in run.config if key.startswith("vars."))
    keys |= dict.fromkeys(map(run_dir.shown, own))
    return [key for key in keys if len({chosen(run, key) for run in runs}) > 1]


def chosen(run: ConfiguredRun, key: str) -> str:
    """Return the value of ``key`` as typed, else from the configuration.

    A target of ours is called by its module, which is a choice, and any other by its class.
    """
    if key in run.choices:
        return run.choices[key]
    for place in (f"{key}.source._target_", f"{key}._target_"):
        if place in run.config:
            target = str(run.config[place])
            *_, module, name = ["", *target.split(".")]
            return run_dir.shown(module if target.startswith(OURS) else name)
    return run_dir.shown(run.config.get(key, UNKNOWN))
