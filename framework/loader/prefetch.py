"""A loader with a background thread and a bounded queue, and what all loaders share."""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from queue import Empty, Full, Queue
from typing import NamedTuple, final

import torch

from framework.contracts.batch import move, pin
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader, LoaderContext, LoaderStats
from framework.system.memory import use
from framework.system.native import limit_threads, num_threads_beside
from framework.system.stopping import remove_at_end, stop_at_end

Stream = torch.cuda.Stream
POLL_S = 0.1  # how long a stopped consumer may keep the producer waiting
# Forward passes that the host may queue ahead of the device. After a wait, at least four are left.
RUN_AHEAD = 6


class Steps(NamedTuple):
    """Steps that follow each other, maybe over the ends of epochs."""

    epoch: int
    start: int  # the first one, in this epoch
    num_steps: int


def host_batches(
    context: LoaderContext, steps: Steps, pinned: bool, consumer: Stream | None = None
) -> MicroBatches:
    """Yield the source's batches, whose memory alone is page-locked if ``pinned``.

    A source that makes batches on the device does so in the stream of the ``consumer``, so that the
    order of that stream keeps them right. DataError D195 for a label that numbers no class.
    """
    use(context.device, pinned=False, stream=consumer)
    source, check = context.source, context.labels
    is_rest = steps.num_steps == source.order.num_steps - steps.start
    if is_rest or not source.reads_on:
        batches = source.batches(steps.epoch, steps.start)
    else:
        batches = source.stream(*steps)
    with closing(batches):
        if not pinned and (check is None or check.allowed is None):
            yield from batches
            return
        while True:
            use(context.device, pinned=pinned)
            try:
                micro = next(batches, None)
                if micro is None:
                    return
                if check is not None:
                    check(micro.batch)
                if pinned:
                    micro = micro._replace(batch=pin(micro.batch))
            finally:
                use(context.device, pinned=False)
            yield micro


def copied(batches: MicroBatches, context: LoaderContext, epoch: int, number: int) -> MicroBatches:
    """Copy host batches to the device and augment them there, in line with the step.

    ``number`` is that of the first batch, as in ``Waits.begin``.
    """
    pace = Pace(context.device)
    waits = context.waits
    waits.begin(number)
    for micro in batches:
        context.clock.mark("wait")
        waits.arrived()
        batch = context.augment(move(micro.batch, context.device), epoch)
        context.clock.mark("copy")
        # ``micro._replace`` would take a microsecond.
        yield MicroBatch(batch, micro.weight, micro.last)
        pace.end_pass()
        waits.ask()


@final
class Pace:
    """Lets the host queue at most ``RUN_AHEAD`` passes that the device has not done.

    Only every second pass is looked at, because recording an event takes up to 10 us of the host.
    Make it in the thread, and on the stream, of the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Stream | None = None
        self._num_passes = 0
        self._done: deque[torch.cuda.Event] = deque()  # of every second pass, the oldest first
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)
            self._done.extend(torch.cuda.Event() for _ in range(RUN_AHEAD // 2))

    def end_pass(self) -> None:
        """Count the work that was queued since the last call, and wait for older work."""
        if self._stream is None:
            return
        self._num_passes += 1
        if self._num_passes % 2:
            return
        self._done.rotate(-1)
        self._done[-1].record(self._stream)  # this was the oldest, and was waited for
        self._done[0].synchronize()  # returns at once if it was never recorded


@final
class Occupancy:
    """How many items were ready when the next one was taken, over all queues of a loader's life.

    Only the thread that takes items may use it.
    """

    def __init__(self) -> None:
        self.num_ready = self.num_taken = 0  # the sum, and the items that were taken
        self.newest = 0  # how many were ready at the newest time
        self._before = 0, 0

    def count(self, num_ready: int) -> None:
        self.newest = num_ready
        self.num_ready += num_ready
        self.num_taken += 1

    def take(self) -> float | None:
        """Return the mean since the last call, or None if nothing was taken."""
        num_ready, num_taken = self._before
        self._before = self.num_ready, self.num_taken
        if self.num_taken == num_taken:
            return None
        return (self.num_ready - num_ready) / (self.num_taken - num_taken)


@final
class Ahead:
    """An iterator that a thread runs ahead of its consumer, by ``depth`` items.

    Order is kept, and an error is raised in place of the item that it prevented. ``close`` stops
    and joins the thread, in which it also closes a generator. ``num_threads`` share its work.
    """

    def __init__(
        self, produce: Iterator[MicroBatch], depth: int, occupancy: Occupancy, num_threads: int = 1
    ) -> None:
        self._produce = produce
        self._depth = depth
        self._occupancy = occupancy
        self._num_threads = num_threads
        # one thread alone writes each; the queue's own size would take its lock
        self._num_made = 0
        self._num_taken = 0
        # an error, or None at the end of the epoch, comes last
        self._queue: Queue[MicroBatch | BaseException | None] = Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-prefetch", daemon=True)
        self.threads = [self._thread]
        self._thread.start()
        stop_at_end(self)

    def deepen(self, depth: int) -> None:
        """Let the thread run ahead by another number of items from now on."""
        self._depth = depth
        with self._queue.mutex:
            self._queue.maxsize = depth
            self._queue.not_full.notify_all()

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or the end, is there already."""
        return not self._queue.empty()

    def __iter__(self) -> Iterator[MicroBatch]:
        while True:
            # the producer may hold one more that does not fit
            num_ready = min(self._num_made - self._num_taken, self._depth)
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            self._num_taken += 1
            self._occupancy.count(num_ready)
            yield item

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        remove_at_end(self)
        self.stop()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()  # make room for a producer that waits to put
            except Empty:
                self._thread.join(POLL_S)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            try:
                limit_threads(self._num_threads)
                for item in self._produce:
                    self._num_made += 1
                    if not self._put(item):
                        break
            finally:
                if isinstance(self._produce, Generator):
                    self._produce.close()
        except BaseException as raised:  # noqa: BLE001  # handed to the consumer, whatever it is
            error = raised
        self._put(error)

    def _put(self, item: MicroBatch | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=POLL_S)
            except Full:
                continue
            return True
        return False


class EpochLoader(Loader):
    """Base of the loaders, which reads host batches over the ends of epochs without a pause.

    ``expect`` begins to read, and ``epoch`` continues with these batches. Without ``expect``, each
    epoch begins to read when it is asked for. Batches are copied in line with the step.
    """

    def __init__(self, pin_memory: bool, *, context: LoaderContext) -> None:
        self.context = context
        self.pin = pin_memory and context.device.type == "cuda"
        self.num_steps = context.source.order.num_steps
        self.identity = context.source.order.identity
        self.sampler = context.source.order.sampler
        self.num_beyond = 0  # batches that may be taken before their step
        self._opened: MicroBatches | Ahead | None = None
        self._expected = Steps(0, 0, 0)  # the steps that ``epoch`` begins to read
        self._next = Steps(0, 0, 0)  # the steps that the open batches still have
        self._number = 0  # of the next batch, since they were opened

    def _open(self, steps: Steps) -> MicroBatches | Ahead:
        return host_batches(self.context, steps, self.pin)

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with self._host(epoch, start) as batches:
            yield from copied(batches, self.context, epoch, self._number)

    def expect(self, epoch: int, start: int, steps: int) -> None:
        expected = Steps(epoch, start, steps)
        is_open = self._opened is not None and self._next == expected
        source = self.context.source
        if is_open or not source.reads_on:
            return
        self._end()
        self._expected = expected
        if steps and not source.starts_processes:
            self._begin(expected)

    def _begin(self, steps: Steps) -> None:
        self._expected = Steps(0, 0, 0)
        self._opened = self._open(steps)
        self._next = steps
        self._number = 0

    def _end(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _host(self, epoch: int, start: int) -> closing[MicroBatches]:
        # Closing them ends all reading, unless they are taken and batches of a next epoch follow.
        if self._opened is None or self._next[:2] != (epoch, start):
            self._end()
            steps = Steps(epoch, start, self.num_steps - start)
            if self._expected.num_steps and self._expected[:2] == steps[:2]:
                steps = self._expected
            self._begin(steps)
        elif self.context.source.reads_on:
            self.context.source.check()  # whether its files were replaced since they were opened
        return closing(self._taken())

    def _taken(self) -> MicroBatches:
        assert self._opened is not None
        follows = False
        try:
            for micro in self._opened:
                self._number += 1
                if micro.last:
                    epoch, step, left = self._next
                    if self.sampler is not None:
                        self.sampler.forget(epoch, step - self.num_beyond)
                    turns, step = divmod(step + 1, self.num_steps)
                    self._next = Steps(epoch + turns, step, left - 1)
                    follows = turns == 1 and left > 1
                yield micro
                if follows:
                    return
        finally:
            if not follows:
                self._end()

    def stats(self) -> LoaderStats:
        source = self.context.source
        return LoaderStats(source.stages(), ready=None, depth=0, content=source.content())

    def close(self) -> None:
        self._end()
        self.context.source.close()


class PrefetchLoader(EpochLoader):
    """A loader that keeps host batches ready, page-locked if ``pin_memory`` and on CUDA.

    ``depth`` is the number of batches that are ready ahead of the step or of its copy.
    """

    def __init__(self, depth: int, pin_memory: bool, *, context: LoaderContext) -> None:
        super().__init__(pin_memory, context=context)
        self.depth = depth
        self.occupancy = Occupancy()
        self._running: Ahead | None = None

    def deepen(self, depth: int) -> None:
        """Keep another number of batches ready from now on."""
        self.depth = depth
        if self._running is not None:
            self._running.deepen(depth)

    def _open(self, steps: Steps) -> Ahead:
        consumer = None
        if self.context.device.type == "cuda":
            consumer = torch.cuda.current_stream(self.context.device)
        host = host_batches(self.context, steps, self.pin, consumer)
        threads = num_threads_beside(self.context.device)
        self._running = Ahead(host, self.depth, self.occupancy, threads)
        return self._running

    def stats(self) -> LoaderStats:
        return super().stats()._replace(ready=self.occupancy.take(), depth=self.depth)
