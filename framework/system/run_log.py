"""``train.log`` of a run: Python's logging, warnings and our notes, of all ranks."""

import logging
import os
import stat
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from framework.errors import escaped
from framework.system.portable import NO_FOLLOW, NO_WAIT
from framework.system.run_dir import LOG, redacted

OWN = logging.getLogger("paceline")  # for what the terminal has already
OWN.propagate = False
OWN.setLevel(logging.INFO)
OWN.addHandler(logging.NullHandler())  # without it Python would print errors once more


class _Lines(logging.Handler):
    """Appends each message in one write, so that lines of ranks do not mix."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.INFO)
        self._descriptor = descriptor
        self._rank = ""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            self._rank = f" rank {os.environ.get('RANK', '0')}"
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        # neither a message that cannot be formatted nor a full disk may stop a run
        with suppress(Exception):
            text = escaped(redacted(self.format(record)))
            time = logging.Formatter().formatTime(record)
            head = f"{time} {record.levelname}{self._rank} {record.name}: "
            lines = "".join(f"{head}{line}\n" for line in text.splitlines())
            os.write(self._descriptor, lines.encode(errors="backslashreplace"))


@contextmanager
def logged(run_dir: Path) -> Generator[None]:
    """Append to ``train.log`` in ``run_dir`` what is logged inside the block, from level INFO.

    The terminal shows what it would show without it. A place that cannot be written to, as on a
    host without the directory, gets no log. A block inside another one changes nothing.
    """
    descriptor = -1
    if not any(isinstance(handler, _Lines) for handler in OWN.handlers):
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_FOLLOW | NO_WAIT
            descriptor = os.open(run_dir / LOG, flags, 0o666)
    if descriptor < 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        yield
        return
    root = logging.getLogger()
    lines, level, show = _Lines(descriptor), root.level, warnings.showwarning
    # Python prints warnings of loggers by itself only while no handler is there.
    printed = [logging.lastResort] if logging.lastResort and not root.handlers else []

    def logged_warning(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
        show(message, category, filename, lineno, *more)
        OWN.warning("%s", warnings.formatwarning(message, category, filename, lineno))

    for handler in (lines, *printed):
        root.addHandler(handler)
    OWN.addHandler(lines)
    root.setLevel(min(level, logging.INFO))
    warnings.showwarning = logged_warning
    try:
        yield
    finally:
        warnings.showwarning = show
        root.setLevel(level)
        OWN.removeHandler(lines)
        for handler in (lines, *printed):
            root.removeHandler(handler)
        os.close(descriptor)
