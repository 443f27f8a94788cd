"""Check that something is at the path of weights, without loading torch."""

import os
from difflib import get_close_matches
from pathlib import Path

from framework.errors import CheckpointError


def check_place(path: str | os.PathLike[str]) -> None:
    """Check that a path names a file or a folder. CheckpointError K110 names the nearest."""
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
