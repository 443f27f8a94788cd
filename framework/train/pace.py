"""How long a run has trained, and how fast."""

import time
from typing import final


@final
class TrainPace:
    """The time and the records of training. Validating and saving do not count.

    Attributes:
        train_s: Seconds of this run up to its last report.
        num_records: Records that this run trained on, over all ranks.
        before_s: Seconds before this run was resumed.
    """

    def __init__(self) -> None:
        self.train_s = 0.0
        self.num_records = 0.0
        self.before_s = 0.0
        self._since = time.perf_counter()  # up to when it is counted
        self._paused_at: float | None = self._since

    @property
    def total_s(self) -> float:
        """Seconds of training up to now, over all parts of a resumed run."""
        now = self._paused_at or time.perf_counter()
        return self.before_s + self.train_s + now - self._since

    def start(self) -> None:
        """Count from now on."""
        self._since = time.perf_counter()
        self._paused_at = None

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def go_on(self) -> None:
        """Leave out the time since ``pause``."""
        assert self._paused_at is not None
        self._since += time.perf_counter() - self._paused_at
        self._paused_at = None

    def lap(self, num_records: float) -> float:
        """Count the time since the last call, and its records. Return the records per second."""
        now = time.perf_counter()
        wall_s = now - self._since
        self._since = now
        self.train_s += wall_s
        self.num_records += num_records
        return num_records / wall_s
