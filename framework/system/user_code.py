"""Errors in the user's own code, told from ours by the traceback and reported with the user's file and line."""

import os
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import NamedTuple

from framework.errors import PacelineError, UserCodeError, words_of

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# the example package lies beside this one in a checkout, and is a library like any other once installed
OURS = tuple(
    os.path.join(folder, "")
    for folder in (
        _PACKAGE,
        os.path.join(os.path.dirname(_PACKAGE), "examples", "paceline_examples"),
    )
)
THIRD_PARTY = ("site-packages", "dist-packages")
GENERATED = "torchinductor_"  # the folders into which torch compiles


class Place(NamedTuple):
    """A line of source. ``function``: its qualified name; "" for a file that cannot be parsed."""

    file: str
    line: int
    function: str


def user_error(
    error: BaseException,
    packages: Sequence[str] = (),
    about: str = "",
    fix: str = "mend it",
    kind: type[UserCodeError] = UserCodeError,
) -> UserCodeError | None:
    """Return error U100 if ``error`` was raised in the user's own code, or by a library that this code called; else None.

    Args:
        error: Any exception. Our own stand for themselves, and running out of memory is nobody's mistake.
        packages: Prefixes of module names that are the user's wherever they are installed, as in ``allow_targets``.
        about: What the code was working on, such as the name of a record.
        fix: What the user can do.
        kind: The class of the result.

    """
    if (
        isinstance(error, (PacelineError, MemoryError))
        or type(error).__name__ == "OutOfMemoryError"
    ):
        return None
    found = _source_of(error, packages)
    if found is None:
        return None
    source, place = found
    doing = f"in {place.function}: " if place.function else ""
    what = f"{doing}{type(source).__name__}: {words_of(source) or 'no words'}"
    where = f"{_shortest(place.file)}:{place.line}"
    return kind(100, where, f"{what} ({about})" if about else what, fix)


def raise_if_user_error(
    error: BaseException, packages: Sequence[str] = (), about: str = "", fix: str = "mend it"
) -> None:
    """Raise what ``user_error`` returns, if anything, from ``error``."""
    fault = user_error(error, packages, about, fix)
    if fault is not None:
        raise fault from error


def _source_of(error: BaseException, packages: Sequence[str]) -> tuple[BaseException, Place] | None:
    """Return ``error``, or the one that it was made from, and the user's line that raised it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        place = _syntax_place(cause) or _innermost(cause, packages)
        if place is not None:
            return cause, place
        cause = cause.__cause__
    return None


def _syntax_place(error: BaseException) -> Place | None:
    if (
        not isinstance(error, SyntaxError)
        or not isinstance(error.filename, str)
        or not os.path.isfile(error.filename)
    ):
        return None
    is_users = not _is_library(error.filename) and not _is_ours(error.filename)
    return Place(error.filename, error.lineno or 1, "") if is_users else None


def _innermost(error: BaseException, packages: Sequence[str]) -> Place | None:
    """Return the innermost line that is no library's, if it is the user's."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if _is_ours(code.co_filename):
            return None
        if _is_installed_as(frame, packages) or not _is_library(code.co_filename):
            return Place(code.co_filename, line, code.co_qualname)
    return None


def _is_installed_as(frame: FrameType, packages: Sequence[str]) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and any(f"{name}.".startswith(package) for package in packages)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(OURS)


def _is_library(file: str) -> bool:
    """Return whether a file is Python's, an installed package's, or generated."""
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
    """Return the path relative to the working directory if the file lies below it, else the absolute one."""
    path = os.path.abspath(file)
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
