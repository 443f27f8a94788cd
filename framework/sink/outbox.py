"""Events of a run that wait on disk until a tracking server has taken them.

``outbox/NAME.jsonl`` keeps every event of the run, a line each, and ``outbox/NAME.json`` how much
of it was sent. The file is the queue, so memory stays small and a killed run loses nothing.
"""

import json
import os
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

from framework.errors import words_of
from framework.system.durable import write_json
from framework.system.run_dir import parsed, read_object, redacted

MOST_EVENTS = 200  # of one batch; a report of a training step has about 25 values
FIRST_PAUSE_S = 1.0  # after a failure; it doubles with every further one
LONGEST_PAUSE_S = 60.0
LONGEST_REASON = 160  # characters

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
        self.path = run_dir / "outbox" / f"{name}.jsonl"
        self._file: FileIO | None = None
        known = read_object(self.path.with_suffix(".json"))
        self.state: dict[str, Any] = known.get("state") or {}
        self.ahead: list[Event] = known.get("ahead") or []
        size = self.path.stat().st_size if self.path.exists() else 0
        self.sent = min(int(known.get("sent") or 0), size)
        if start_step is not None:
            self._drop_after(start_step, size)

    def append(self, event: Event) -> None:
        """Add an event on a line of its own. OSError if the disk refuses it, or a part of it."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a killed process leaves whole lines, and at most one part of a line.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            with open(self.path, "rb") as file:
                self._file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        line = json.dumps(redacted(event)).encode() + b"\n"
        written = self._file.write(line)
        # Without a buffer, a disk that becomes full takes a part of the line, and no error says so.
        if written < len(line):
            self._file.truncate(self._file.tell() - written)
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
        for event, line_end in self._events(self.sent):
            end = line_end
            if event:
                events.append(event)
            if len(events) == MOST_EVENTS:
                break
        return OutboxBatch(events, end)

    def num_waiting(self) -> int:
        return sum(1 for event, _ in self._events(self.sent) if event)

    def has_ended(self) -> bool:
        """Return whether the last event says how the run ended."""
        last = deque(self._events(0), maxlen=1)
        return bool(last) and "end" in last[0][0]

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
        write_json(self.path.with_suffix(".json"), redacted(known))

    def _events(self, start: int) -> Iterator[tuple[Event, int]]:
        """Yield the event of each whole line after byte ``start``, and where the line ends.

        A line that was torn gives {}.
        """
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield parsed(line), start

    def _drop_after(self, start_step: int, size: int) -> None:
        """Cut off the events after a step, and remember those reports that were sent."""
        kept = 0
        is_cut = False
        for event, end in self._events(0):
            is_cut = is_cut or event.get("step", 0) > start_step
            if not is_cut:
                kept = end
            elif end > self.sent:
                break
            elif "report" in event:
                self.ahead.append(event)
        if kept < size:
            self.sent = min(self.sent, kept)
            self.save()  # first: a kill before the cut must not forget what the server has
            os.truncate(self.path, kept)


class StartOver(Exception):
    """The server has reports that are no longer true: all events must be sent again."""


class Tracker(Protocol):
    """A tracking server, as the thread uses it."""

    def prepare(self, outbox: Outbox, checkpoints: bool) -> None:
        """Keep in ``outbox.state`` what sends the events again, before the first is sent.

        ``checkpoints`` says whether the weights are sent when the run ends.
        """
        ...

    def send(self, outbox: Outbox, events: Sequence[Event]) -> None:
        """Send events. The tracker may keep values in ``outbox.state``.

        Any exception means that they will be sent again, and StartOver that all of them will.
        """
        ...

    def close(self) -> None:
        """End the connection, after the last batch."""
        ...


@final
class Delivery:
    """A thread that sends what is in an outbox. The run only appends to the outbox's file.

    Args:
        outbox: What to send.
        tracker: Where to.
        name: The name of the sink, for messages.
        every_s: Seconds between two batches: a batch takes Python's lock for some milliseconds.
        close_s: Seconds that the end of the run may wait for the server.
        say: Prints a note or a warning.
    """

    def __init__(
        self,
        outbox: Outbox,
        tracker: Tracker,
        name: str,
        every_s: float,
        close_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._outbox = outbox
        self._tracker = tracker
        self._name = name
        self._every_s = every_s
        self._close_s = close_s
        self._say = say
        self._ending = threading.Event()
        self._failure = ""  # of the last attempt
        self._has_warned = False
        # A daemon, so that a request without an answer cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"{name} sink", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest, and say in one line what could not be sent."""
        self._ending.set()
        self._thread.join(self._close_s)
        if not self._thread.is_alive() and not self._failure:
            return
        why = self._failure or f"no answer within {self._close_s:g} s"
        command = f"paceline runs send {shlex.quote(str(self._outbox.run_dir))}"
        if uri := self._outbox.state.get("uri"):
            command = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} {command}"
        what = f"{self._outbox.num_waiting()} events could not be sent ({why})"
        self._say(f"{self._name}: {what}; they are kept, send them with: {command}")

    def _run(self) -> None:
        pause_s = 0.0
        failed_pause_s = FIRST_PAUSE_S
        while True:
            is_last = self._ending.wait(pause_s)
            began_at = time.monotonic()
            is_drained = False
            try:
                batch = self._outbox.waiting()
                if batch.events:
                    self._tracker.send(self._outbox, batch.events)
                    self._outbox.mark_sent(batch.end)
                is_drained = len(batch.events) < MOST_EVENTS
                self._failure = ""
                failed_pause_s = FIRST_PAUSE_S
                # Half of the time is left to the run.
                busy_s = time.monotonic() - began_at
                pause_s = self._every_s if is_drained else min(busy_s, self._every_s)
            except StartOver:
                self._failure = ""
                self._outbox.start_over()
                pause_s = 0.0
            except Exception as error:  # noqa: BLE001  # a server may answer anything
                self._fail(error)
                pause_s = failed_pause_s = min(2 * failed_pause_s, LONGEST_PAUSE_S)
            if is_last and (self._failure or is_drained):
                break
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = reason_of(error)
        if not self._has_warned and not self._ending.is_set():
            self._has_warned = True
            kept = "training continues, and what it should get is kept and sent later"
            self._say(f"warning: {self._name} cannot be reached ({self._failure}); {kept}")


def reason_of(error: BaseException) -> str:
    """Return why a request failed, such as "Connection refused", from the first cause."""
    cause = error
    while (cause.__cause__ or cause.__context__) is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return words_of(error, LONGEST_REASON) or type(error).__name__
