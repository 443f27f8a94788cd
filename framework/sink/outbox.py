"""Events of a run that wait on disk until a tracking server has taken them.

``outbox/NAME.jsonl`` keeps every event of the run, a line each, and ``outbox/NAME.json`` how much
of it was sent. The file is the queue, so memory stays small and a killed run loses nothing.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, final

from framework.system.durable import write_json
from framework.system.redaction import redacted
from framework.system.run_dir import read_object

FOLDER = "outbox"
MOST_EVENTS = 200  # of one batch; a report of a training step has about 25 values

Event = dict[str, Any]


class OutboxBatch(NamedTuple):
    """Events that wait, and where the next ones begin."""

    events: list[Event]
    end: int  # bytes


@final
class Outbox:
    """The events of one run for one tracking server.

    The run appends and one thread reads. ``state`` and all methods but ``append`` and ``sync``
    belong to that thread.

    Args:
        run_dir: The directory of the run.
        name: The name of the sink.
        start_step: Events after this step are dropped, because a resumed run logs them again; None
            keeps all events.

    Attributes:
        state: What is remembered beside the events, such as the run's name on the server: plain
            values. ``save`` keeps them.
        sent: How many bytes of the file were sent.
        ahead: Reports that were sent and then dropped: the server still has them.
    """

    def __init__(self, run_dir: Path, name: str, start_step: int | None = None) -> None:
        self.run_dir = run_dir
        self.path = run_dir / FOLDER / f"{name}.jsonl"
        self._state_path = run_dir / FOLDER / f"{name}.json"
        self._file: FileIO | None = None
        self._is_torn = False  # whether the file ends inside a line
        known = read_object(self._state_path)
        self.state: dict[str, Any] = known.get("state") or {}
        self.ahead: list[Event] = known.get("ahead") or []
        self.sent = min(int(known.get("sent") or 0), _size(self.path))
        if start_step is not None:
            self._drop_after(start_step)

    def append(self, event: Event) -> None:
        """Add an event on a line of its own. OSError if the disk refuses it, or a part of it."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a killed process leaves whole lines, and at most one part of a line.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._is_torn = _is_torn(self.path)
        line = json.dumps(redacted(event)).encode() + b"\n"
        if self._is_torn:
            line = b"\n" + line
        written = self._file.write(line)
        # Without a buffer, a disk that becomes full takes a part of the line, and no error says so.
        self._is_torn = written < len(line)
        if self._is_torn:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def sync(self) -> None:
        """Put on disk what was appended."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def waiting(self) -> OutboxBatch:
        """Return the first events that were not sent."""
        events: list[Event] = []
        end = self.sent
        for line, line_end in _lines(self.path, self.sent):
            event = _parsed(line)
            if event is not None:  # a line that a full disk has torn is left out
                events.append(event)
            end = line_end
            if len(events) == MOST_EVENTS:
                break
        return OutboxBatch(events, end)

    def num_waiting(self) -> int:
        lines = _lines(self.path, self.sent)
        return sum(1 for line, _ in lines if _parsed(line) is not None)

    def mark_sent(self, end: int) -> None:
        """Remember that the server has taken everything before byte ``end``."""
        self.sent = end
        self.save()

    def start_over(self) -> None:
        """Forget what was sent, so that all events are sent again."""
        self.sent = 0
        self.ahead = []
        self.save()

    def save(self) -> None:
        """Keep ``state``, ``sent`` and ``ahead``."""
        known = {"sent": self.sent, "state": self.state, "ahead": self.ahead}
        write_json(self._state_path, redacted(known))

    def _drop_after(self, start_step: int) -> None:
        """Cut off the events after a step, and remember those reports that were sent."""
        kept = 0
        is_cut = False
        for line, line_end in _lines(self.path, 0):
            event = _parsed(line) or {}
            step = event.get("step")
            is_cut = is_cut or (isinstance(step, int) and step > start_step)
            if not is_cut:
                kept = line_end
            elif line_end > self.sent:
                break
            elif "report" in event:
                self.ahead.append(event)
        if kept == _size(self.path):
            return
        self.sent = min(self.sent, kept)
        self.save()  # first: a kill before the cut must not forget what the server has
        os.truncate(self.path, kept)


def _lines(path: Path, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield each whole line after byte ``start``, and where it ends."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(start)
        end = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line, end


def _is_torn(path: Path) -> bool:
    """Return whether a file ends inside a line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


def _parsed(line: bytes) -> Event | None:
    with suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
