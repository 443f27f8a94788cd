"""The files of a run directory: their names, and the one way to read them.

A run directory may be half written, damaged, or come from somebody else. So no file is read that is
a link, a pipe, or larger than a run writes.
"""

import glob
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

FACTS = "run.json"  # what is known before the first step
NEXT_FACTS = "run.next.json"  # what FACTS will be, once a resumed run has loaded its state
REPORTS = "metrics.jsonl"
SUMMARY = "summary.json"
ENDED = "exit.json"
RESOLVED = "resolved.json"
OBJECTS = (FACTS, SUMMARY, ENDED)
MARKS = (*OBJECTS, REPORTS)  # one of them makes a directory that of a run
MOST_BYTES = 64 << 20  # of a file with one object


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


def read_json(path: Path) -> Any:
    """Return what a file holds. OSError if it cannot be read, ValueError if that is no JSON."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ValueError(f"{path.name} has more than {MOST_BYTES >> 20} MiB")
        try:
            return json.loads(file.read())
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
