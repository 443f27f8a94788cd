"""What a tracking server gets of a run: events that wait on disk until a thread has sent them.

``outbox/NAME.jsonl`` keeps every event of the run, a line each, and ``outbox/NAME.json`` how much
of it was sent. The file is the queue, so memory stays small and a killed run loses nothing.
"""

import json
import os
import re
import shlex
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, final

from framework.contracts.training import Report, RunContext
from framework.errors import words_of
from framework.sink import report_values
from framework.system import run_dir as files
from framework.system.durable import write_json

MOST_EVENTS = 200  # of one batch; a report of a training step has about 25 values
FIRST_PAUSE_S = 1.0  # after a failure; it doubles with every further one
LONGEST_PAUSE_S = 60.0

Event = dict[str, Any]


class Tracker(Protocol):
    """What sends events to a server, from one thread."""

    def send(self, events: Sequence[Event]) -> None:
        """Send events. Any exception means that they will be sent again."""
        ...

    def close(self) -> None:
        """End the connection, after the last batch."""
        ...


@final
class Outbox:
    """The events of one run for one tracking server.

    The run appends, and one thread sends.

    Attributes:
        state: Plain values that are kept beside the events. ``token`` names the run for the server,
            and ``is_stale`` says that the server has events that a resumed run has dropped.
        sent: How many bytes of the file were sent.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self.run_dir = run_dir
        self.name = name
        self.path = run_dir / "outbox" / f"{name}.jsonl"
        self._file: BinaryIO | None = None
        known = files.read_object(self.path.with_suffix(".json"))
        self.state: dict[str, Any] = known.get("state") or {}
        # It names a folder and stands in a query, and the file may come from somebody else.
        if not re.fullmatch("[0-9a-f]{32}", str(self.state.get("token"))):
            self.state["token"] = uuid.uuid4().hex
        size = self.path.stat().st_size if self.path.exists() else 0
        self.sent = min(int(known.get("sent") or 0), size)

    def drop_after(self, step: int) -> None:
        """Cut off the events after a step, which a resumed run logs again."""
        kept = 0
        for event, end in self._events(0):
            if event.get("step", 0) > step:
                break
            kept = end
        if kept < self.sent:
            self.sent = 0
            self.state["is_stale"] = True
            self.save()  # first: a kill before the cut must not forget what the server has
        with suppress(FileNotFoundError):
            os.truncate(self.path, kept)

    def append(self, event: Event) -> None:
        """Add an event on a line of its own."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab")  # noqa: SIM115
            with open(self.path, "rb") as file:  # a killed run may have left a part of a line
                self._file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        self._file.write(json.dumps(files.redacted(event)).encode() + b"\n")
        self._file.flush()  # what a full disk refuses stays in the buffer, and is written later

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def send(self, tracker: Tracker) -> bool:
        """Send the next events, and return whether they were the last ones."""
        events: list[Event] = []
        end = self.sent
        for event, line_end in self._events(self.sent):
            end = line_end
            if event:
                events.append(event)
            if len(events) == MOST_EVENTS:
                break
        if events:
            tracker.send(events)
            self.sent = end
            self.save()
        return len(events) < MOST_EVENTS

    def num_waiting(self) -> int:
        return sum(1 for event, _ in self._events(self.sent) if event)

    def end(self, status: str, step: int, checkpoints: bool) -> None:
        """Add the last events, if missing. ``status`` is FINISHED, KILLED or FAILED."""
        last = deque(self._events(0), maxlen=1)
        if last and "end" in last[0][0]:
            return
        if checkpoints:
            self.append({"files": ["checkpoints/best.pt", "checkpoints/last.pt"], "step": step})
        self.append({"end": status, "step": step, "time_ms": _now_ms()})
        self.close()

    def save(self) -> None:
        known = {"sent": self.sent, "state": self.state}
        write_json(self.path.with_suffix(".json"), files.redacted(known))

    def _events(self, start: int) -> Iterator[tuple[Event, int]]:
        """Yield event and end of each whole line after ``start``; {} if it is damaged."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield files.parsed(line), start


class TrackedSink:
    """Writes the events of a run to an outbox, from which a thread sends them to a server.

    The run never waits for the server. What cannot be sent stays in ``run_dir/outbox``.

    Args:
        num_images: How many records of the sample batch are drawn.
        checkpoints: Whether the weights are sent when the run ends.
        every_s: Seconds between two batches: a batch takes Python's lock for some milliseconds.
        close_s: Seconds that the end of the run may wait for the server.
    """

    def __init__(
        self,
        outbox: Outbox,
        tracker: Tracker,
        num_images: int,
        checkpoints: bool,
        every_s: float,
        close_s: float,
        run: RunContext,
    ) -> None:
        self._outbox = outbox
        self._tracker = tracker
        self._checkpoints = checkpoints
        self._every_s = every_s
        self._close_s = close_s
        self._run = run
        self._last_step = run.start_step
        self._failure = ""  # of the last attempt
        self._ending = threading.Event()
        outbox.state["checkpoints"] = checkpoints
        outbox.drop_after(run.start_step)
        outbox.save()
        config = files.newest_config(run.run_dir)
        outbox.append({"begin": config.name, "step": run.start_step, "time_ms": _now_ms()})
        pictures: list[Path] = []
        if not run.start_step:
            folder = run.run_dir / "pictures"
            pictures = report_values.write_pictures(run.sample, num_images, folder)
        self._add_files(files.configurations(run.run_dir), pictures, run.start_step)
        # A daemon, so that a request without an answer cannot keep the process alive.
        self._thread = threading.Thread(target=self._send, name=f"{outbox.name} sink", daemon=True)
        self._thread.start()

    def _add_files(self, names: list[str], pictures: list[Path], step: int) -> None:
        drawn = [str(path.relative_to(self._run.run_dir)) for path in pictures]
        self._outbox.append({"files": names + drawn, "step": step})

    def write(self, report: Report) -> None:
        self._last_step = report.step
        self._outbox.append(
            {
                "report": report.split,
                "step": report.step,
                "time_ms": _now_ms(),
                "learned": report_values.learned_values(report),
                "measured": report_values.measured_values(report),
            }
        )
        if report.arrays:
            # A folder per step: pictures are sent later, or sent again.
            folder = self._run.run_dir / "pictures" / f"step-{report.step:08d}"
            pictures = report_values.write_arrays(report.arrays, report.split, folder)
            self._add_files([], pictures, report.step)

    def flush(self) -> None:
        self._outbox.sync()

    def close(self) -> None:
        """Note how the run ended, send the rest, and say in one line what could not be sent."""
        if self._ending.is_set():
            return
        status = "KILLED"
        if sys.exception() is not None:
            status = "FAILED"
        elif self._last_step >= self._run.total_steps or self._run.has_ended():
            status = "FINISHED"
        try:
            self._outbox.end(status, self._last_step, self._checkpoints)
        finally:
            self._ending.set()
            self._thread.join(self._close_s)
            if self._thread.is_alive() or self._failure:
                why = self._failure or f"no answer within {self._close_s:g} s"
                command = f"paceline runs send {shlex.quote(str(self._run.run_dir))}"
                if uri := self._outbox.state.get("uri"):
                    command = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} {command}"
                what = f"{self._outbox.num_waiting()} events could not be sent ({why})"
                what += f"; they are kept, send them with: {command}"
                self._run.say(f"{self._outbox.name}: {what}")

    def _send(self) -> None:
        pause_s = 0.0
        failed_pause_s = FIRST_PAUSE_S
        has_warned = False
        while True:
            is_ending = self._ending.wait(pause_s)
            began_at = time.monotonic()
            try:
                is_drained = self._outbox.send(self._tracker)
                self._failure = ""
                failed_pause_s = FIRST_PAUSE_S
                pause_s = self._every_s
                if not is_drained:  # half of the time is left to the run
                    pause_s = min(time.monotonic() - began_at, self._every_s)
            except Exception as error:  # noqa: BLE001  # a server may answer anything
                is_drained = True
                self._failure = reason_of(error)
                pause_s = failed_pause_s = min(2 * failed_pause_s, LONGEST_PAUSE_S)
                if not has_warned and not self._ending.is_set():
                    has_warned = True
                    what = f"{self._outbox.name} cannot be reached ({self._failure})"
                    kept = "training continues, and what it should get is kept and sent later"
                    self._run.say(f"warning: {what}; {kept}")
            if is_ending and is_drained:
                break
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001
            self._failure = reason_of(error)


def reason_of(error: BaseException) -> str:
    """Return why a request failed, such as "Connection refused", from the first cause."""
    cause = error
    while (cause.__cause__ or cause.__context__) is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return words_of(error, 160)


def read_config(run_dir: Path, name: object) -> dict[str, str]:
    """Return the leaves of a configuration as texts by dotted names; {} if it cannot be read."""
    path = inside(run_dir, name)
    leaves = files.flat(files.read_object(path)) if path else {}
    return {n: leaf if isinstance(leaf, str) else json.dumps(leaf) for n, leaf in leaves.items()}


def inside(run_dir: Path, name: object) -> Path | None:
    """Return the file ``name`` of a run directory; None if there is none.

    None leads out of the directory, which may come from somebody else: its files are sent.
    """
    path = run_dir / str(name)
    with suppress(OSError, ValueError):
        is_ours = path.resolve().is_relative_to(run_dir.resolve())
        if is_ours and path.is_file():
            return path
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
