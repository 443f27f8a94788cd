"""Let a run continue without a sink that fails, such as on a full disk."""

from collections.abc import Callable
from typing import final

from framework.contracts.training import Report, Sink
from framework.errors import ResourceError


@final
class TolerantSink:
    """Passes everything on to a sink, and warns once if the sink fails.

    Args:
        sink: The sink. OSError and ResourceError are tolerated.
        warn: Prints a warning.
    """

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink = sink
        self._warn = warn
        self._has_failed = False

    def write(self, report: Report) -> None:
        try:
            self._sink.write(report)
        except (OSError, ResourceError) as error:
            self._fail(error)

    def flush(self) -> None:
        try:
            self._sink.flush()
        except (OSError, ResourceError) as error:
            self._fail(error)

    def close(self) -> None:
        try:
            self._sink.close()
        except (OSError, ResourceError) as error:
            self._fail(error)

    def _fail(self, error: OSError | ResourceError) -> None:
        if not self._has_failed:
            self._has_failed = True
            what = f"{type(self._sink).__name__} cannot write: {_reason(error)}"
            self._warn(f"warning: {what}; training continues without it")


def _reason(error: OSError | ResourceError) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error)
