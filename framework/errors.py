"""What can go wrong, said in one line: ``error[D101]: where = value: what is wrong; what to do``.

The letter is the kind, the number is stable; ``docs/errors.md`` lists every one. The exit code belongs to the kind.
"""

from typing import ClassVar


class PacelineError(Exception):
    """Base of all errors a user can mend. ``str(error)`` is the one line, without a traceback."""

    letter: ClassVar[str] = "X"
    exit_code: ClassVar[int] = 1

    def __init__(self, number: int, where: str, what: str, fix: str) -> None:
        super().__init__(number, where, what, fix)  # all four, so that the error pickles

    @property
    def reason(self) -> str:
        number, where, what, fix = self.args
        return f"error[{self.letter}{number}]: {where}: {what}; {fix}"

    def __str__(self) -> str:
        return printable(" ".join(self.reason.split()))


def printable(text: str) -> str:
    """``text`` with all that a terminal would obey, or could not show, written out: names of files may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(PacelineError):
    """The command line or a YAML file asks for something that cannot be. Exit code 2."""

    letter, exit_code = "C", 2


class DataError(PacelineError):
    """A file is missing, damaged, or does not hold what was expected. Exit code 3."""

    letter, exit_code = "D", 3


class CheckpointError(PacelineError):
    """A checkpoint is missing, damaged, or belongs to another run. Exit code 4."""

    letter, exit_code = "K", 4


class ResourceError(PacelineError):
    """Disk, memory, permission or an optional package is missing. Exit code 5."""

    letter, exit_code = "R", 5


class NumericError(PacelineError):
    """The loss is no longer a number. Exit code 6."""

    letter, exit_code = "N", 6


class DistributedError(PacelineError):
    """A rank was lost, or ranks could not meet. Exit code 7."""

    letter, exit_code = "P", 7


class UserCodeError(PacelineError):
    """The user's own code raised an exception: ``framework.system.user_code``. Exit code 9."""

    letter, exit_code = "U", 9


class UserRecordError(UserCodeError, DataError):
    """The user's own code raised an exception for one record, which packing may skip as it skips bad data."""


def error_kinds(kind: type[PacelineError] = PacelineError) -> dict[str, type[PacelineError]]:
    """Return every kind of error by the name of its class."""
    kinds = {kind.__name__: kind}
    for narrower in kind.__subclasses__():
        kinds.update(error_kinds(narrower))
    return kinds


def words_of(error: BaseException, most: int = 300) -> str:
    """Return what an exception says, on one line of at most ``most`` characters, also if its own ``__str__`` fails."""
    try:
        return " ".join(str(error).split())[:most]
    except Exception:  # noqa: BLE001  # a user's exception may do anything
        return "no words"


EXIT_SKIPPED = 8  # packed, but for bad items that pack.on_error=skip left out
EXIT_PREEMPTED = 75  # SIGTERM: state saved, start again with resume=
EXIT_INTERRUPTED = 130  # SIGINT
EXIT_PIPE = 141  # nobody reads our output any more
EXIT_TERMINATED = 143  # SIGTERM where there is no state to save
