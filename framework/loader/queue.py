"""A background thread and a bounded queue between a producer of batches and the step."""

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar, final

from framework.system.native import limit_threads

T = TypeVar("T")
POLL_S = 0.1  # how long a stopped consumer may keep the producer waiting


class _End:
    """Marks the end of the epoch, and what ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@final
class Occupancy:
    """How many items lay ready when the next one was asked for, over all queues of a loader's life, and at the ``newest`` time. For the thread
    that asks.
    """

    def __init__(self) -> None:
        self._num_ready = self._num_asked = 0
        self.newest = 0

    def count(self, num_ready: int) -> None:
        self.newest = num_ready
        self._num_ready += num_ready
        self._num_asked += 1

    def take(self) -> float | None:
        """The mean since this was called last; None where nothing was asked for."""
        mean = self._num_ready / self._num_asked if self._num_asked else None
        self._num_ready = self._num_asked = 0
        return mean


@final
class Ahead(Generic[T]):
    """Iterates ``produce`` in a thread, up to ``depth`` items ahead. Order is kept; an error is raised where the item would have come.

    ``close`` (also by ``contextlib.closing``) stops and joins the thread; the producer's own generator is closed in it. ``occupancy`` is told
    at each item taken how many lay ready. ``num_threads``: that share what the thread does.
    """

    def __init__(
        self, produce: Iterator[T], depth: int, occupancy: Occupancy, num_threads: int = 1
    ) -> None:
        self._produce, self._depth, self._occupancy, self._num_threads = (
            produce,
            depth,
            occupancy,
            num_threads,
        )
        self._num_made = self._num_taken = (
            0  # each written by one thread alone: asking the queue would take its lock
        )
        self._queue: Queue[T | _End] = Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            num_ready = min(
                self._num_made - self._num_taken, self._depth
            )  # one more may be in the producer's hand
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            self._num_taken += 1
            self._occupancy.count(num_ready)
            yield item

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()  # make room for a producer that waits to put
            except Empty:
                self._thread.join(POLL_S)

    def _run(self) -> None:
        limit_threads(self._num_threads)
        error: BaseException | None = None
        try:
            for item in self._produce:
                self._num_made += 1
                if not self._put(item):
                    break
        except BaseException as raised:  # noqa: BLE001  # handed to the consumer, whatever it is
            error = raised
        finally:
            close = getattr(self._produce, "close", None)
            if close is not None:
                close()
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=POLL_S)
            except Full:
                continue
            return True
        return False
