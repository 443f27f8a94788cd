"""Send a run's events to a tracking server from a thread of its own."""

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, final

from framework.errors import words_of
from framework.sink.outbox import MOST_EVENTS, Event, Outbox

FIRST_PAUSE_S = 1.0  # after a failure; it doubles with every further one
LONGEST_PAUSE_S = 60.0
LONGEST_REASON = 160  # characters


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
        *,
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
        self._is_drained = False
        self._has_warned = False
        self._failed_pause_s = FIRST_PAUSE_S
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
        run_dir = self._outbox.run_dir
        command = f"paceline runs send {shlex.quote(str(run_dir))}"
        if uri := self._outbox.state.get("uri"):
            command = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} {command}"
        what = f"{self._outbox.num_waiting()} events could not be sent ({why})"
        self._say(f"{self._name}: {what}; they are kept, send them with: {command}")

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            is_last = self._ending.wait(pause_s)
            pause_s = self._attempt()
            if is_last and (self._failure or self._is_drained):
                break
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _attempt(self) -> float:
        """Send one batch, and return the seconds until the next."""
        began_at = time.monotonic()
        self._is_drained = False
        try:
            batch = self._outbox.waiting()
            if batch.events:
                self._tracker.send(self._outbox, batch.events)
                self._outbox.mark_sent(batch.end)
        except StartOver:
            self._failure = ""
            self._outbox.start_over()
            return 0.0
        except Exception as error:  # noqa: BLE001  # a server may answer anything
            self._fail(error)
            self._failed_pause_s = min(2 * self._failed_pause_s, LONGEST_PAUSE_S)
            return self._failed_pause_s
        self._failure = ""
        self._failed_pause_s = FIRST_PAUSE_S
        self._is_drained = len(batch.events) < MOST_EVENTS
        if self._is_drained:
            return self._every_s
        return min(time.monotonic() - began_at, self._every_s)  # leave half of the time to the run

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
