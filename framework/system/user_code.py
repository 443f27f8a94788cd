"""Recognize errors in the user's own code by the traceback, and report the user's file and line."""

import os
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from framework.errors import PacelineError, ResourceError, UserCodeError, words_of
from framework.system.memory import lacks_memory, memory_error

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = os.path.join(_PACKAGE, "")
THIRD_PARTY = ("site-packages", "dist-packages")
GENERATED = "torchinductor_"  # the folders into which torch compiles


class Place(NamedTuple):
    """A line of source code. ``function`` is a qualified name, or "" after a syntax error."""

    file: str
    line: int
    function: str


def user_error(
    error: BaseException,
    packages: Sequence[str] = (),
    about: str = "",
    fix: str = "correct it",
    kind: type[UserCodeError] = UserCodeError,
) -> UserCodeError | ResourceError | None:
    """Return error U100 if the user's code, or a library that it called, raised ``error``.

    A lack of memory is R104, whoever raised it.

    Args:
        error: Any exception. Our own errors are never the user's.
        packages: Prefixes of module names that are the user's even if they are installed, as in
            ``allow_targets``.
        about: What the code was working on, such as the name of a record.
        fix: What the user can do.
        kind: The class of the result.
    """
    if isinstance(error, PacelineError):
        return None
    if lacks_memory(error):
        return memory_error(error)
    source_and_place = _source_of(error, packages)
    if source_and_place is None:
        return None
    source, place = source_and_place
    what = f"{type(source).__name__}: {words_of(source)}"
    if place.function:
        what = f"in {place.function}: {what}"
    if about:
        what += f" ({about})"
    return kind(100, f"{_shortest(place.file)}:{place.line}", what, fix)


def raise_if_user_error(
    error: BaseException, packages: Sequence[str] = (), about: str = "", fix: str = "correct it"
) -> None:
    """Raise what ``user_error`` returns, if anything, from ``error``."""
    fault = user_error(error, packages, about, fix)
    if fault is not None:
        raise fault from error


def _source_of(error: BaseException, packages: Sequence[str]) -> tuple[BaseException, Place] | None:
    """Return ``error``, or an error that caused it, and the user's line that raised it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, SyntaxError) and os.path.isfile(str(cause.filename)):
            file = str(cause.filename)
            if is_users(file):
                return cause, Place(file, cause.lineno or 1, "")
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            code = frame.f_code
            if _is_ours(code.co_filename):
                break
            name = f"{frame.f_globals.get('__name__')}."
            if name.startswith(tuple(packages)) or not _is_library(code.co_filename):
                return cause, Place(code.co_filename, line, code.co_qualname)
        cause = cause.__cause__
    return None


def user_line(file: str, line: int) -> str | None:
    """Return ``file:line`` if a file is the user's, and None for a library's or ours."""
    return f"{_shortest(file)}:{line}" if is_users(file) else None


def nearest_line(frames: Iterable[Place]) -> str:
    """Return the first place outside libraries as ``file:line (function)``, "" for none."""
    places = list(frames)
    own = [place for place in places if _is_ours(place.file) or not _is_library(place.file)]
    if not places:
        return ""
    file, line, function = (own or places)[0]
    short = _shortest(file)
    if _is_ours(file):
        short = os.path.relpath(file, os.path.dirname(_PACKAGE))
    return f"{short}:{line} ({function})"


def is_users(file: str) -> bool:
    """Return whether a file is the user's, and not a library's or ours."""
    return not _is_ours(file) and not _is_library(file)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(OURS)


def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python or an installed package, or is generated."""
    if file.startswith("<"):
        return True
    path = os.path.abspath(file)
    parts = path.split(os.sep)
    if any(part in THIRD_PARTY or part.startswith(GENERATED) for part in parts):
        return True
    return any(path.startswith(folder) for folder in _library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.join(os.path.abspath(sysconfig.get_path(name)), "") for name in names)


def _shortest(file: str) -> str:
    """Return the path relative to the working directory if the file lies below it."""
    relative = os.path.relpath(file)
    if relative.startswith(os.pardir):
        return os.path.abspath(file)
    return relative
