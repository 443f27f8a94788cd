"""Delete run directories, and nothing else."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from framework.commands.report.units import plural, size
from framework.commands.runs.run_listing import disk_bytes, is_file
from framework.commands.runs.run_state import LOCK, running_by
from framework.config.schema import FACTS
from framework.errors import ConfigError, ResourceError, listed, printable
from framework.system.durable import remove_leftovers, temporary_name
from framework.system.lock import locked

# What commands write into a run directory.
LEFT = r".+\.tmp\..+\.\d+\.[0-9a-f]+"  # by a process that was killed
EVALUATION = re.compile(rf"evaluation\.json|worst\.html|confusion(\..+)?\.png|{LEFT}")
FILES = re.compile(
    rf"{re.escape(FACTS)}|run\.next\.json|metrics\.jsonl|summary\.json|exit\.json|debug\.log"
    rf"|{re.escape(LOCK)}|config(\.\d+)?\.yaml|resolved(\.\d+)?\.json"
    rf"|report\.html|report-.+\.png|{EVALUATION.pattern}"
)
CHECKPOINTS = "checkpoints"
STATES = re.compile(rf"(step-\d+|best|last)\.pt|{LEFT}")
FOLDERS = re.compile(rf"tensorboard|profile|outbox|curves|pictures|wandb|replay|{LEFT}")


def prune(paths: Sequence[Path], others: bool, only_say: bool = False) -> None:
    """Delete run directories, or only say which. All are checked before the first is deleted.

    Args:
        paths: The directories.
        others: Whether files that no command has written are deleted, too.
        only_say: Delete nothing.

    Raises:
        ConfigError: C375 to C378 for what is no run directory, or holds more than a run.
        ResourceError: R190 if one of the runs is running, R191 if one cannot be deleted.
    """
    for path in paths:
        _check(path, others)
    total = 0
    for path in paths:
        total += disk_bytes(path)
        if only_say:
            print(printable(f"would delete {path}"))
        else:
            _delete(path)
            print(printable(f"deleted {path}"), flush=True)
    counted = f"{plural(len(paths), 'run')}, {size(total)}"
    if only_say and paths:
        print(f"nothing is deleted yet: {counted}; add yes=true to delete them")
    else:
        print(counted)


def check_no_link(path: Path) -> None:
    """Raise ConfigError C376 for a folder that is a link, or behind one."""
    place = os.path.abspath(path)
    real = os.path.realpath(place)
    if place != real:
        fix = f"name the place itself: {real}"
        raise ConfigError(376, str(path), "is a link, or lies behind one", fix)


def _check(path: Path, others: bool) -> None:
    """Raise the error of a directory that must not be deleted."""
    check_no_link(path)
    if not is_file(path / FACTS):
        fix = "name the directory of a run, as 'paceline runs' lists it"
        raise ConfigError(375, str(path), f"is no run directory: it has no {FACTS}", fix)
    if Path.cwd().is_relative_to(path.resolve()):
        fix = "go to another directory first"
        raise ConfigError(377, str(path), "is the directory that you are in", fix)
    owner = running_by(path)
    if owner:
        raise _running(path, owner)
    more = _more_than_a_run(path)
    if more and not others:
        what = f"holds what no command has written: {listed(more)}"
        fix = "move it away, or add others=true to delete it, too"
        raise ConfigError(378, str(path), what, fix)


def _running(path: Path, owner: str) -> ResourceError:
    fix = "wait until it ends, or stop it"
    return ResourceError(190, str(path), f"{owner} is training there", fix)


def _more_than_a_run(path: Path) -> list[str]:
    """Return the names in a run directory that are not a run's."""
    more: list[str] = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if not entry.is_dir(follow_symlinks=False):
            more += [] if FILES.fullmatch(entry.name) else [entry.name]
        elif entry.name == CHECKPOINTS:
            more += [f"{entry.name}/{name}" for name in _others(entry.path, STATES)]
        elif not FOLDERS.fullmatch(entry.name) and not _is_evaluation(Path(entry.path)):
            more.append(entry.name)
    return more


def _others(folder: str | Path, known: re.Pattern[str]) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not known.fullmatch(name))


def _is_evaluation(folder: Path) -> bool:
    return is_file(folder / "evaluation.json") and not _others(folder, EVALUATION)


def _delete(path: Path) -> None:
    """Delete a directory under another name, so that no half of a run is ever listed."""
    try:
        remove_leftovers(path)
        with locked(path / LOCK, lambda owner: _running(path, owner), patience_s=0.0, needed=False):
            gone = temporary_name(path)
            os.rename(path, gone)
        shutil.rmtree(gone)
    except OSError as error:
        what = f"cannot be deleted: {error.strerror or error}"
        raise ResourceError(191, str(path), what, "check who owns its files") from error
