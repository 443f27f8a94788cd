"""What a rank does of its own in each step, apart from the time in which it exchanges with others.

A rank that waits inside an exchange must not be blamed for the time, so this time is a span of its
own. The rest of a step is own work.
"""

from collections.abc import Callable
from typing import final

from framework.contracts.span import EXCHANGE, IDLE, OWN, SPANS

STEP_ENDS = "report"  # the name of a step's last mark
SKIPPED = ""  # the name of a mark whose time does not count
MOST_ROWS = 512  # steps that are kept between two reports; of more, every second one is dropped
UPDATE = "optimizer"  # the first span after the exchange of the gradients

Row = tuple[float, ...]  # as in ``KnowsOwnWork.own_work``


@final
class OwnWork:
    """Splits the marks of the steps into own work and exchange, and keeps a row for each step.

    A row begins after the exchange of the gradients and ends after that of the next step.

    Args:
        add: Called with the name and the seconds of each piece of a span.
        has_host_times: Whether marks have times that can be compared with those of other ranks.
    """

    def __init__(self, add: Callable[[str, float], None], has_host_times: bool) -> None:
        self._add = add
        self._has_host_times = has_host_times
        self._rows: list[Row] = []
        self._number = 0  # of the present step
        self._stride = 1  # every so many steps are kept
        self._own_s = dict.fromkeys(SPANS, 0.0)  # of the present row
        self._exchange_s = 0.0  # of the present row
        self._carried_s = 0.0  # own work that belongs to the next span
        self._pending_s = 0.0  # exchange since the last span
        self._origin_s: float | None = None  # the time at which the row's own work would begin

    def mark(self, name: str, took_s: float, now_s: float) -> None:
        """Count a mark ``took_s`` after the one before it. ``now_s`` is its time on the host."""
        if name == OWN:
            self._carried_s += took_s
            if self._origin_s is None:
                self._origin_s = now_s - self._carried_s - sum(self._own_s.values())
        elif name == EXCHANGE:
            self._pending_s += took_s
        elif name == SKIPPED:
            self._carried_s = self._pending_s = 0.0
            self._origin_s = None
        else:
            self._span(name, took_s + self._carried_s)

    def _span(self, name: str, seconds: float) -> None:
        if self._pending_s:
            self._add(EXCHANGE, self._pending_s)
            self._exchange_s += self._pending_s
            self._pending_s = 0.0
        self._carried_s = 0.0
        if name == UPDATE:
            self._end_row()
        self._add(name, seconds)
        # A device's time without work is what waiting for data costs it.
        column = "wait" if name == IDLE else name
        if column in self._own_s:
            self._own_s[column] += seconds

    def _end_row(self) -> None:
        origin_s = self._origin_s
        if not self._has_host_times:
            origin_s = 0.0
        if origin_s is not None and self._exchange_s and self._number % self._stride == 0:
            own_s = tuple(self._own_s.values())
            row = (float(self._number), origin_s + sum(own_s), self._exchange_s, *own_s)
            self._rows.append(row)
            if len(self._rows) > MOST_ROWS:
                self._stride *= 2
                self._rows = [row for row in self._rows if row[0] % self._stride == 0]
        self._number += 1
        self._exchange_s = 0.0
        self._origin_s = None
        self._own_s = dict.fromkeys(SPANS, 0.0)

    def take(self) -> list[Row]:
        """Return the rows since the last call."""
        rows = self._rows
        self._rows = []
        self._stride = 1
        return rows
