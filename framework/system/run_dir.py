"""The files of a run directory: their names, how they are read, and what they never hold.

A directory may be half written, damaged, or come from somebody else: ``check_entry`` comes first.
Whoever reads what ``${oc.env:NAME}`` stands for, perhaps a secret, calls ``note``, and whoever
writes a file of a run or sends a part of it calls ``redacted``.
"""

import glob
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from framework.errors import CheckpointError, printable
from framework.system.durable import publish, write_json
from framework.system.portable import NO_FOLLOW, NO_WAIT

FACTS = "run.json"  # what is known before the first step
NEXT_FACTS = "run.next.json"  # what FACTS will be, once a resumed run has loaded its state
REPORTS = "metrics.jsonl"
SUMMARY = "summary.json"
ENDED = "exit.json"
JOB_LOG = "job.log"  # what a job of a sweep has printed, if jobs run side by side
RESOLVED = "resolved.json"
LOG = "train.log"
OBJECTS = (FACTS, SUMMARY, ENDED)
SIGNED = re.compile(r"(run|run\.next|summary|exit|resolved(\.\d+)?)\.json")
DIGEST = "digest"
MARKS = (*OBJECTS, REPORTS)  # one of them makes a directory that of a run
MOST_BYTES = 64 << 20  # of a file with one object
TRACKED = "wandb"  # a folder in which Weights & Biases links to files of its own
# What a run writes to.
LOGS = ("tensorboard", TRACKED)
FOLDERS = (*LOGS, "checkpoints", "curves", "outbox", "pictures", "profile", "replay")
FILES = (*MARKS, NEXT_FACTS, RESOLVED, LOG, "config.yaml", "debug.log", "report.html", "run.lock")
LONGEST = 500  # characters of a shown text: a configuration may hold a whole file
LEAST_LETTERS = 4  # shorter values are no secrets, and are part of every other word
REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)\}")
# Keys whose values are Paceline's own words, such as train and finished.
KEPT = ("split", "status", "config", "report", "begin", "_target_")

_names: set[str] = set()  # of the environment's variables that were read


def check_entry(run_dir: Path) -> None:
    """Check that nothing in the directory of a run leads out of it, before anything is read there.

    The directory itself may be a link: who names it has chosen it. If it holds no run, only the
    names that a run uses count. K126 for a link, or for what is neither a file nor a folder.
    """
    inside = os.path.join(os.path.realpath(run_dir), "")
    for path in _used(run_dir):
        try:
            facts = os.lstat(path)
            what = f"is a link to {os.readlink(path)}" if stat.S_ISLNK(facts.st_mode) else ""
        except FileNotFoundError:  # of a run that is under way
            continue
        if stat.S_ISDIR(facts.st_mode) or stat.S_ISREG(facts.st_mode):
            continue
        folder, *below = os.path.relpath(path, run_dir).split(os.sep)
        leads_inside = below[1:] or os.path.realpath(path).startswith(inside)
        if what and folder == TRACKED and leads_inside:
            continue  # nobody follows what lies in one of its runs
        fix = "remove it: a run has files and folders of its own"
        raise CheckpointError(126, path, what or "is neither a file nor a folder", fix)


def check_sweep(sweep_dir: str) -> None:
    """Check that no job of a sweep is led out of its directory. CheckpointError K126 for a link."""
    for path in Path(sweep_dir).glob("*"):
        if path.is_symlink():
            what = f"is a link to {path.readlink()}"
            raise CheckpointError(126, str(path), what, "remove it: a sweep has files of its own")


def check_weights_path(path: str | os.PathLike[str]) -> None:
    """Check that a path names a file or a folder of weights. CheckpointError K110."""
    given = Path(path)
    if given.is_dir() or given.is_file():
        return
    fix = "give the path of a file of weights, or of a run's directory"
    if given.exists():
        raise CheckpointError(110, str(given), "is no regular file", fix)
    close: list[str] = []
    if given.parent.is_dir():
        close = get_close_matches(given.name, os.listdir(given.parent), n=1)
    if close:
        fix = f"did you mean '{given.parent / close[0]}'?"
    raise CheckpointError(110, str(given), "is not there", fix)


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
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT | NO_FOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path.name} is no file")
    return open(descriptor, "rb")


def write_object(path: Path, value: Mapping[str, Any], redact: bool = True) -> None:
    """Publish an object with a digest of its own content, which ``read_json`` compares.

    With ``redact``, it has no values from the environment.
    """
    if redact:
        value = redacted(value)
    plain = json.loads(json.dumps(value))
    write_json(path, {**plain, DIGEST: _digest(plain)})


def _digest(value: dict[str, Any]) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def read_json(path: Path) -> Any:
    """Return what a file holds. OSError, ValueError if it is unreadable, no JSON, or changed."""
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
        return mapping(read_json(path))
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

    A text is a path, or a pattern of paths, if something is there in the folder. Others stay.
    """
    if isinstance(given, dict):
        parts = {key: reached(part, folder) for key, part in given.items() if key != "_target_"}
        return given | parts
    if isinstance(given, list):
        return [reached(part, folder) for part in given]
    if not isinstance(given, str) or not given or "\0" in given:
        return given
    path = os.path.join(folder, given)
    if os.path.exists(path) or (glob.has_magic(given) and glob.glob(path, recursive=True)):
        return path
    return given


def is_below(path: str) -> bool:
    """Return whether a path lies below the present folder, with links followed.

    The folder ``outputs`` itself may be a link of the user's to a larger disk.
    """
    tops = tuple(os.path.join(os.path.realpath(top), "") for top in (".", "outputs"))
    return os.path.realpath(path).startswith(tops)


def names_no_server(place: str) -> bool:
    """Return whether a path, or the address of a database in a file, lies below this folder."""
    path = re.sub(r"^(sqlite:///|file:(//)?)", "", place)
    return path != "databricks" and not set(":?%") & set(path) and is_below(path)


def note(names: Iterable[str]) -> None:
    """Remember variables whose values were read."""
    _names.update(names)


def noted() -> list[str]:
    """Return the variables whose values were read."""
    return sorted(_names)


def redacted(value: Any) -> Any:
    """Return plain values with ``${oc.env:NAME}`` in place of what was read. Keys stay."""
    if isinstance(value, dict):
        return {key: item if key in KEPT else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    values = {name: os.environ.get(name, "") for name in _names}
    for name in sorted(values, key=lambda name: -len(values[name])):
        secret = values[name]
        if len(secret) >= LEAST_LETTERS:
            path = os.path.normpath(secret)
            forms = (secret, repr(secret)[1:-1], " ".join(secret.split()), quote(secret, safe=""))
            for form in (*forms, *[path] * (len(path) >= LEAST_LETTERS)):
                value = value.replace(form, f"${{oc.env:{name}}}")
    return value


def restored(text: str) -> str:
    """Return a text with the values that ``redacted`` took out, where the variables are set."""
    return REFERENCE.sub(lambda match: os.environ.get(match[1], match[0]), text)


def parsed(text: bytes) -> dict[str, Any]:
    """Return the object that ``text`` holds; {} if it holds anything else."""
    with suppress(ValueError, RecursionError):
        return mapping(json.loads(text))
    return {}


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in each line of ``path``; {} for a line that holds anything else."""
    with open_file(path) as file:
        yield from map(parsed, file)


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def words(value: Any) -> list[str]:
    """Return the items of a list as text; [] if ``value`` is no list."""
    return list(map(str, value)) if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """Return ``value`` as a float, NaN and infinity included; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value)
    return None


def numbers(value: Any) -> dict[str, float]:
    """Return the numbers of an object by name."""
    known = {shown(str(name)): number(item) for name, item in mapping(value).items()}
    return {name: item for name, item in known.items() if item is not None}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by dotted names; a list is a leaf."""
    leaves: dict[str, Any] = {}
    for name, item in mapping(value).items():
        key = f"{prefix}{name}"
        if item and isinstance(item, dict):
            leaves.update(flat(item, f"{key}."))
        else:
            leaves[key] = item
    return leaves


def shown(value: Any) -> str:
    """Return ``value`` as one line of printable characters of limited length."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = printable(" ".join(value.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
