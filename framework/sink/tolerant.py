"""Let a run continue without a sink that fails, such as on a full disk."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

from framework.contracts.training import Report, Sink
from framework.errors import ResourceError


@final
class TolerantSink:
    """Passes everything on to ``sink``, and warns once about its OSError or ResourceError."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink = sink
        self._warn = warn
        self._has_failed = False

    def write(self, report: Report) -> None:
        with self._tolerant():
            self._sink.write(report)

    def flush(self) -> None:
        with self._tolerant():
            self._sink.flush()

    def close(self) -> None:
        with self._tolerant():
            self._sink.close()

    @contextmanager
    def _tolerant(self) -> Generator[None]:
        try:
            yield
        except (OSError, ResourceError) as error:
            cause = error.__cause__ or error
            reason = cause.strerror if isinstance(cause, OSError) else None
            if not self._has_failed:
                self._has_failed = True
                what = f"{type(self._sink).__name__} cannot write: {reason or error}"
                self._warn(f"warning: {what}; training continues without it")
