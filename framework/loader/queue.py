"""A background thread and a bounded queue between a producer of batches and the step."""

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar, final

T = TypeVar("T")
POLL_S = 0.1  # how long a stopped consumer may keep the producer waiting


class _End:
    """Marks the end of the epoch, and what ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@final
class Ahead(Generic[T]):
    """Iterates ``produce`` in a thread, up to ``depth`` items ahead. Order is kept; an error is raised where the item would have come.

    ``close`` (also by ``contextlib.closing``) stops and joins the thread; the producer's own generator is closed in it.
    """

    def __init__(self, produce: Iterator[T], depth: int) -> None:
        self._produce = produce
        self._queue: Queue[T | _End] = Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()  # make room for a producer that waits to put
            except Empty:
                self._thread.join(POLL_S)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._produce:
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
