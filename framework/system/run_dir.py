"""The files of a run directory: their names, and the one way to read them.

A run directory may be half written, damaged, or come from somebody else. So it is entered by
``check_entry``, and no file is read that is a pipe, or larger than a run writes.
"""

import glob
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from framework.errors import CheckpointError
from framework.system.durable import publish, write_json
from framework.system.redaction import redacted

FACTS = "run.json"  # what is known before the first step
NEXT_FACTS = "run.next.json"  # what FACTS will be, once a resumed run has loaded its state
REPORTS = "metrics.jsonl"
SUMMARY = "summary.json"
ENDED = "exit.json"
RESOLVED = "resolved.json"
OBJECTS = (FACTS, SUMMARY, ENDED)
SIGNED = re.compile(r"(run|run\.next|summary|exit|resolved(\.\d+)?)\.json")
DIGEST = "digest"
MARKS = (*OBJECTS, REPORTS)  # one of them makes a directory that of a run
MOST_BYTES = 64 << 20  # of a file with one object
# What a run writes to
FOLDERS = (
    "checkpoints",
    "curves",
    "outbox",
    "pictures",
    "replay",
    "tensorboard",
    "profile",
    "wandb",
)
FILES = (*MARKS, NEXT_FACTS, RESOLVED, "config.yaml", "debug.log", "report.html", "run.lock")
TRACKED = "wandb"  # a folder in which Weights & Biases links to files of its own


def check_entry(run_dir: Path) -> None:
    """Check that nothing in the directory of a run leads out of it, before anything is read there.

    The directory itself may be a link: who names it has chosen it. If it holds no run, only the
    names that a run uses count.

    Raises:
        CheckpointError: K126 for a link, or for what is neither a file nor a folder.
    """
    for path in _used(run_dir):
        with suppress(FileNotFoundError):  # of a run that is under way
            if what := _strangeness(run_dir, path):
                fix = "remove it: a run has files and folders of its own"
                raise CheckpointError(126, path, what, fix)


def own_files(run_dir: Path) -> None:
    """Give files with a second name elsewhere (a hard link) a copy, before a run changes them.

    The caller holds the lock of the directory: nobody else writes to them.
    """
    for path in _used(run_dir):
        facts = os.lstat(path)
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
            with publish(Path(path)) as temporary:
                shutil.copy2(path, temporary)


def _used(run_dir: Path) -> Iterator[str]:
    """Yield the paths in a run's directory; if it holds no run, those that a run would use."""
    runs = is_run(run_dir)
    for folder, folders, files in os.walk(run_dir):
        if not runs and os.path.samefile(folder, run_dir):
            folders[:] = [name for name in folders if name in FOLDERS]
            files = [name for name in files if name in FILES]  # noqa: PLW2901
        yield from (os.path.join(folder, name) for name in (*folders, *files))


def _strangeness(run_dir: Path, path: str) -> str:
    """Return what makes a path in a run's directory lead out of it, or nothing."""
    facts = os.lstat(path)
    if stat.S_ISLNK(facts.st_mode):
        inside = os.path.join(os.path.realpath(run_dir), "")
        folder, *below = os.path.relpath(path, run_dir).split(os.sep)
        if folder == TRACKED and (below[1:] or os.path.realpath(path).startswith(inside)):
            return ""  # nobody follows what lies in one of its runs
        return f"is a link to {os.readlink(path)}"
    if not stat.S_ISDIR(facts.st_mode) and not stat.S_ISREG(facts.st_mode):
        return "is neither a file nor a folder"
    return ""


def is_run(path: Path) -> bool:
    """Return whether ``path`` is the directory of a run."""
    return any(is_file(path / name) for name in MARKS)


def is_file(path: Path) -> bool:
    """Return whether ``path`` is a regular file, and not a link to one."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes. OSError if it is missing or another thing."""
    # A pipe must not make this wait, nor a link lead elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path.name} is no file")
    return open(descriptor, "rb")


def write_object(path: Path, value: Mapping[str, Any], redact: bool = True) -> None:
    """Publish an object with a digest of its own content, which ``read_json`` compares.

    With ``redact``, it has no values from the environment.
    """
    plain = json.loads(json.dumps(redacted(value) if redact else value))
    write_json(path, {**plain, DIGEST: _digest(plain)})


def _digest(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def read_json(path: Path) -> Any:
    """Return what a file holds.

    OSError if it cannot be read, ValueError if it is no JSON or was changed after it was written.
    """
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ValueError(f"{path.name} has more than {MOST_BYTES >> 20} MiB")
        try:
            value = json.loads(file.read())
            if SIGNED.fullmatch(path.name) and isinstance(value, dict):
                digest = value.pop(DIGEST, None)
                if digest is None:
                    raise ValueError(f"{path.name} has no digest, as of an earlier version")
                if digest != _digest(value):
                    raise ValueError(f"{path.name} was changed by hand or is damaged")
            return value
        except RecursionError as error:
            raise ValueError(f"{path.name} is nested too deeply") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a file holds; {} if it is missing, damaged, or holds another thing."""
    with suppress(OSError, ValueError):
        known = read_json(path)
        if isinstance(known, dict):
            return known
    return {}


def configurations(run_dir: Path) -> list[str]:
    """Return the names of the files that say how a run was configured, also when it was resumed."""
    paths = [*run_dir.glob("config*.yaml"), *run_dir.glob("resolved*.json"), run_dir / FACTS]
    return sorted(path.name for path in paths if path.is_file())


def newest_config(run_dir: Path) -> Path:
    """Return ``resolved.N.json`` with the greatest N, which the last resume wrote."""
    numbers = {run_dir / RESOLVED: 0}
    for path in run_dir.glob("resolved.*.json"):
        if digits := re.fullmatch(r"resolved\.(\d+)\.json", path.name):
            numbers[path] = int(digits[1])
    return max(numbers, key=lambda path: numbers[path])


def reached(given: Any, folder: str) -> Any:
    """Return a value of a configuration with the paths that were meant in ``folder``.

    A text is a path, or a pattern of paths, if something is there in the folder. Others stay as
    they are, also where a run comes from another machine.
    """
    if isinstance(given, dict):
        return {
            key: part if key == "_target_" else reached(part, folder) for key, part in given.items()
        }
    if isinstance(given, list):
        return [reached(part, folder) for part in given]
    if not isinstance(given, str) or not given or "\0" in given:
        return given
    path = os.path.join(folder, given)
    is_there = os.path.exists(path) or (glob.has_magic(given) and glob.glob(path, recursive=True))
    return path if is_there else given
