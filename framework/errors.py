"""Errors that a user can fix, in one line: ``where = value: what is wrong; what to do``.

The letter names the kind of error, which decides the exit code. A number never changes.
``docs/errors.md`` lists all errors.
"""

from typing import ClassVar


class PacelineError(Exception):
    """The base of all errors that a user can fix. ``str(error)`` is the line.

    Args:
        number: Number of the error within its kind.
        where: A key and its value, a file, or a record.
        what: What is wrong with it.
        fix: What the user can do.
    """

    letter: ClassVar[str] = "X"
    exit_code: ClassVar[int] = 1

    def __init__(self, number: int, where: str, what: str, fix: str) -> None:
        super().__init__(number, where, what, fix)  # all four, so that the error can be pickled

    @property
    def reason(self) -> str:
        """The line with the whitespace of its parts."""
        number, where, what, fix = self.args
        return f"error[{self.letter}{number}]: {where}: {what}; {fix}"

    def __str__(self) -> str:
        return printable(" ".join(self.reason.split()))


def printable(text: str) -> str:
    """Return ``text`` with every character escaped that a terminal would obey or could not show.

    Names of files may contain anything.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(PacelineError):
    """The command line or a YAML file asks for something impossible. Exit code 2."""

    letter = "C"
    exit_code = 2


class DataError(PacelineError):
    """A file is missing, damaged, or contains something unexpected. Exit code 3."""

    letter = "D"
    exit_code = 3


class CheckpointError(PacelineError):
    """A checkpoint is missing, damaged, or belongs to another run. Exit code 4."""

    letter = "K"
    exit_code = 4


class ResourceError(PacelineError):
    """Disk, memory, permission or an optional package is missing. Exit code 5."""

    letter = "R"
    exit_code = 5


class NumericError(PacelineError):
    """The loss is NaN or infinite. Exit code 6."""

    letter = "N"
    exit_code = 6


class DistributedError(PacelineError):
    """A rank was lost, or the ranks could not meet. Exit code 7."""

    letter = "P"
    exit_code = 7


class UserCodeError(PacelineError):
    """The user's own code raised an exception; see ``framework.system.user_code``. Exit code 9."""

    letter = "U"
    exit_code = 9


class UserRecordError(UserCodeError, DataError):
    """The user's own code raised an exception for one record, which packing may skip."""


def error_kinds(kind: type[PacelineError] = PacelineError) -> dict[str, type[PacelineError]]:
    """Return every kind of error by the name of its class."""
    kinds = {kind.__name__: kind}
    for subclass in kind.__subclasses__():
        kinds |= error_kinds(subclass)
    return kinds


def words_of(error: BaseException, most: int = 300) -> str:
    """Return the message of an exception on one line of at most ``most`` characters.

    If its ``__str__`` fails, return "no words".
    """
    try:
        return " ".join(str(error).split())[:most]
    except Exception:  # noqa: BLE001  # a user's exception may do anything
        return "no words"


EXIT_SKIPPED = 8  # packed, but pack.on_error=skip left out bad items
EXIT_PREEMPTED = 75  # SIGTERM after saving the state: start again with resume=
EXIT_INTERRUPTED = 130  # SIGINT
EXIT_PIPE = 141  # nobody reads the output any more
EXIT_TERMINATED = 143  # SIGTERM with nothing to save
