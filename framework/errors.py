"""Errors that a user can fix, as ``error[D101]: where = value: what is wrong; what to do``.

The letter names the kind of error, which decides the exit code. A number never changes.
"""

import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import ClassVar, TextIO

Say = Callable[[str], None]  # prints a line

# Exit codes that belong to no error.
EXIT_SKIPPED = 8  # packed or predicted, but on_error=skip left out bad items
EXIT_PREEMPTED = 75  # SIGTERM or SIGUSR1 after saving the state: start again with resume=
EXIT_INTERRUPTED = 130  # SIGINT
EXIT_PIPE = 141  # the reader of the output has gone, as in ``| head``
EXIT_TERMINATED = 143  # SIGTERM or SIGUSR1 with nothing to save, or a second one of them
MOST_LISTED = 20  # names in a message
# C0 and C1 without tabs and line breaks, also as bytes of file names
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]|\r(?!\n)")

# What an error says if the system or a device refuses memory.
REFUSALS = re.compile(
    f"{os.strerror(errno.ENOMEM)}|allocate memory|not enough memory|out of memory|bad[_ ]alloc|"
    "ALLOC_FAILED|failed to map segment"
)


class PacelineError(Exception):
    """The base of all errors that a user can fix. ``str(error)`` is the line.

    ``where`` is what the error is about: a key and its value, a file, or a record.
    """

    letter: ClassVar[str] = "X"
    exit_code: ClassVar[int] = 1

    def __init__(self, number: int, where: str, what: str, fix: str) -> None:
        super().__init__(number, where, what, fix)  # all four, so that the error can be pickled

    def __str__(self) -> str:
        number, where, what, fix = self.args
        return printable(" ".join(f"error[{self.letter}{number}]: {where}: {what}; {fix}".split()))


def printable(text: str, keep: str = "") -> str:
    """Escape all characters that a terminal would obey or could not show, but those of ``keep``."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def escaped(text: str) -> str:
    """Escape the characters that a terminal obeys, as JSON does, but not tabs and line breaks."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines of text with all that a terminal would obey escaped; by default on stdout."""
    print(printable(text, keep="\n\t"), file=file, flush=True)


def did_you_mean(word: str, known: Sequence[str], prefix: str = "", cutoff: float = 0.5) -> str:
    """Return `` (did you mean 'x'?)`` with the nearest of ``known``, or nothing."""
    close = get_close_matches(word, known, n=1, cutoff=cutoff)
    if not close:
        return ""
    nearest = f"{prefix}.{close[0]}" if prefix else close[0]
    return f" (did you mean '{nearest}'?)"


class ConfigError(PacelineError):
    """The command line or a YAML file asks for something impossible. Exit code 2."""

    letter = "C"
    exit_code = 2


class DataError(PacelineError):
    """A file is missing, damaged, or contains something unexpected. Exit code 3."""

    letter = "D"
    exit_code = 3


class CheckpointError(PacelineError):
    """A checkpoint is missing, is damaged, or does not fit this run. Exit code 4."""

    letter = "K"
    exit_code = 4


class ResourceError(PacelineError):
    """Disk space, memory, a permission, a package or a lock is missing. Exit code 5."""

    letter = "R"
    exit_code = 5


class NumericError(PacelineError):
    """The loss, a weight, or the gradients of too many steps are not finite. Exit code 6."""

    letter = "N"
    exit_code = 6


class DistributedError(PacelineError):
    """A rank was lost, the ranks cannot meet, or they do not do the same thing. Exit code 7."""

    letter = "P"
    exit_code = 7


class HungRankError(DistributedError):
    """A rank hangs. The notes are the lines of Python at which each rank is. Exit code 7."""

    rank: int = 0  # the first that hangs


class UserCodeError(PacelineError):
    """The user's own code raised an exception; see ``framework.system.user_code``. Exit code 9."""

    letter = "U"
    exit_code = 9


class UserRecordError(UserCodeError, DataError):
    """The user's own code raised an exception for one record, which may be skipped as bad data."""


def error_kinds(kind: type[PacelineError] = PacelineError) -> dict[str, type[PacelineError]]:
    """Return every kind of error by the name of its class."""
    kinds = {kind.__name__: kind}
    for subclass in kind.__subclasses__():
        kinds |= error_kinds(subclass)
    return kinds


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return the first names in one line, and how many there are."""
    some = ", ".join(names[:most])
    if len(names) > most:
        some += f", ... ({len(names)} in all)"
    return some


def words_of(error: BaseException, most: int = 300) -> str:
    """Return the message of an exception, or else its class, on one line of ``most`` characters."""
    with suppress(Exception):  # a user's exception may do anything
        if text := " ".join(str(error).split())[:most]:
            return text
    return type(error).__name__


def lacks_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that no memory is left. Its causes do not count."""
    # torch's OutOfMemoryError is slow to import
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError | ImportError):
        return False
    is_refused = REFUSALS.search(words_of(error, 1 << 20)) is not None
    return is_refused or getattr(error, "errno", None) == errno.ENOMEM


def memory_error(error: BaseException) -> ResourceError:
    """Return the error for a refusal of memory."""
    fix = "lower batch_size or the number of workers, or choose a smaller model"
    what = words_of(error, 200) if str(error) else "used up"
    return ResourceError(104, "memory", what, fix)
