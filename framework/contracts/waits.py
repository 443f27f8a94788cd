"""How long the steps of a loader wait for their batches."""

from collections.abc import Callable
from time import perf_counter
from typing import final

PAUSE_S = 1.0  # a longer time between two batches may be a validation or a saved state
MUCH = 10  # a pause takes this many times as long as the step before, too


@final
class Waits:
    """Counts what a loader waits for its source. Counting a batch takes 0.3 us.

    The loader calls ``begin``, and then ``arrived`` and ``ask`` in turn. One thread calls them.

    Args:
        slow: The numbers of the batches with slow records that the source has delivered, as
            ``begin`` counts them. Numbers are removed when their batches arrive.

    Attributes:
        wait_s: Seconds that steps waited, over the loader's life.
        start_s: The part of ``wait_s`` for the first batches of epochs.
        step_s: Seconds of the steps themselves, without pauses.
        num_batches: Batches that arrived.
        slow_wait_s: The part of ``wait_s`` for batches with slow records.
        num_slow: Batches with slow records.
    """

    def __init__(self, slow: set[int] | None = None) -> None:
        self.slow: set[int] = set() if slow is None else slow
        self.wait_s = 0.0
        self.start_s = 0.0
        self.step_s = 0.0
        self.num_batches = 0
        self.slow_wait_s = 0.0
        self.num_slow = 0
        self._number = 0
        self._is_first = True
        self._asked_at = 0.0
        self._arrived_at = 0.0
        self._newest_s = 0.0  # seconds between the newest two batches, pause or not
        self._look_at = float("inf")
        self._look: Callable[[float], float] = lambda _: float("inf")

    def call(self, look: Callable[[float], float]) -> None:
        """Call ``look`` now and then when a batch has arrived.

        It gets the time of ``perf_counter``, and returns when to call it again.
        """
        self._look = look
        self._look_at = 0.0

    def begin(self, number: int = 0) -> None:
        """Begin an epoch, or a part of one.

        ``number`` counts the batches that came since the source has begun to read, maybe in epochs
        before.
        """
        self._number = number
        self._is_first = True
        self._asked_at = perf_counter()

    def arrived(self) -> None:
        """Count the batch that has arrived."""
        now = perf_counter()
        wait_s = now - self._asked_at
        self.wait_s += wait_s
        self.num_batches += 1
        if self._is_first:
            self._is_first = False
            self.start_s += wait_s
        if self._number in self.slow:
            self.slow.discard(self._number)
            self.slow_wait_s += wait_s
            self.num_slow += 1
        self._number += 1
        self._arrived_at = now
        if now >= self._look_at:
            self._look_at = self._look(now)
            self._arrived_at = perf_counter()

    def ask(self) -> None:
        """Count the step that has ended. The next batch is awaited from now on."""
        now = perf_counter()
        step_s = now - self._arrived_at
        if step_s < PAUSE_S or step_s < MUCH * self._newest_s:
            self.step_s += step_s
        self._newest_s = step_s
        self._asked_at = now
