"""Workers that read batches: the calling thread, other threads, or processes.

Batches come in the order of the requests.
"""

import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, final
from weakref import proxy

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, _utils

from framework.contracts.batch import Batch, leaves, mapped, tensors
from framework.contracts.waits import SlowRecord, SlowRecords
from framework.data.reader import Reader, Request, SlowRead, Timed, Work, plain
from framework.errors import ConfigError, DataError, PacelineError, ResourceError
from framework.measure.clock import Stages
from framework.system import stopping, user_code
from framework.system.native import crowded, limit_threads

AHEAD = 2  # batches that are read ahead: by all threads together, or by each process
# Records of a slice, which costs about 1 ms of Python, under the lock that the step needs, too.
LEAST_SLICE = 32
LOOK_S = 0.5  # between two looks whether all processes live, while a batch is awaited
CLOSE_S = 2.0  # the most time that processes get to end by themselves
DYING_S = 1.0  # a process that is killed ends within this time
MOST_KEPT = 64  # records in the ledger
MOST_SHOWN = 10  # records that a report names
ALIGNMENT = 64  # bytes; every dtype may begin there

torch_signals: Any = _utils.signal_handling
# Silences torch's warning about more processes than cores, a number that the user chose.
quiet: Any = partial(warnings.catch_warnings, action="ignore", category=UserWarning)


@final
class Workers:
    """Workers that run a reader.

    Threads share the work on each batch, since decoding releases Python's lock. Processes read
    whole batches, which suits transforms that hold the lock. They live from the first ``map`` until
    ``close`` or the end of the program. While one ``map`` is in use, another starts its own.

    Args:
        num: The number of workers; 0: the calling thread reads. As an attribute, after ``change``.
        kind: ``thread`` or ``process``.
        timeout_s: ResourceError R106 after a longer wait for a batch.
        start_method: Of processes, such as ``spawn``; None: Python's default.

    Attributes:
        ahead: Batches that are read ahead: by all threads together, or by each process.
        stages: Seconds per stage of the batches that were yielded.
        ledger: The slow records of these batches.
    """

    def __init__(
        self,
        read: Reader,
        num: int,
        kind: str,
        timeout_s: float = 300.0,
        start_method: str | None = None,
    ) -> None:
        if kind not in ("thread", "process"):
            where = f"workers.kind = {kind}"
            raise ConfigError(107, where, "must be thread or process", "choose one of them")
        self.read = read
        self.kind = kind
        self.timeout_s = timeout_s
        self.start_method = start_method
        self.stages = Stages()
        self.ledger = Ledger()
        self.num, self.ahead = num, AHEAD
        self._used = num, AHEAD  # by the newest ``map``
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None
        self._busy = threading.Lock()  # held by the ``map`` that uses the processes
        self._since = 0.0  # when the batch of a process was first awaited
        self._late = False  # whether a batch took longer than ``timeout_s``

    @property
    def num_to_start(self) -> int:
        """How many processes the next batches have to wait for, because they do not run yet."""
        return self.num if self.kind == "process" and self._loader is None else 0

    def num_slices(self, batch_size: int) -> int:
        """Return into how many slices threads cut a batch."""
        return -(-batch_size // self._slice_size(batch_size, self.num))

    def most_ahead(self, batch_size: int) -> int:
        """Return the most batches that are under way ahead of the consumer."""
        if self.kind == "process":
            return self.ahead * self.num
        return self.num and max(self.ahead, self.num // self.num_slices(batch_size))

    @property
    def is_changing(self) -> bool:
        """Whether the workers from before the newest ``change`` still read."""
        return self._used != (self.num, self.ahead)

    def change(self, num: int, ahead: int) -> None:
        """Use other workers after the batches that are being read. Any thread may call this."""
        self.num, self.ahead = num, ahead

    def map(self, requests: Iterable[Request]) -> Generator[Batch]:
        """Yield one batch per request, in order. The iterator may be closed early."""
        rest = iter(requests)
        is_last = False

        def until_a_change() -> Generator[Request]:
            nonlocal is_last
            for request in rest:
                yield request
                if self.is_changing:
                    return
            is_last = True

        while not is_last:
            num, ahead = self._used = self.num, self.ahead
            part = until_a_change()
            if not num and not self.read.decodes:
                # Reading a batch takes 40 us, so the loop is minimal.
                read, sums_s = self.read, self.stages.sums_s
                for request in part:
                    start = perf_counter()
                    batch = read(request)
                    sums_s["read"] += perf_counter() - start
                    yield batch
            elif not num:
                in_background = threading.current_thread() is not threading.main_thread()
                with crowded() if in_background else nullcontext():
                    for request in part:
                        yield self._counted(self.read.timed(request))
            elif self.kind == "thread":
                yield from self._by_threads(part, num, ahead)
            elif self._busy.acquire(blocking=False):
                try:
                    yield from self._by_processes(part, num, ahead)
                finally:
                    self._busy.release()
            else:  # the processes of a DataLoader serve one iterator at a time
                others = Workers(self.read, num, self.kind, self.timeout_s, self.start_method)
                others.change(num, ahead)
                others.stages, others.ledger = self.stages, self.ledger
                with closing(others):
                    yield from others.map(part)

    def _counted(self, result: Timed) -> Batch:
        self.stages.add_slices(result.slices_s)
        self.ledger.add(result.slow)
        return result.batch

    def _by_threads(self, requests: Iterable[Request], num: int, ahead: int) -> Generator[Batch]:
        pool = _Pool(num)
        in_progress: deque[tuple[Work, list[Future[None]]]] = deque()
        try:
            with crowded() if self.read.decodes else nullcontext():
                for request in requests:
                    work = self.read.begin(request)
                    count = len(request.indices)
                    step = self._slice_size(count, num)
                    calls = [
                        pool.submit(self.read.fill, work, start, min(start + step, count))
                        for start in range(0, max(1, count), step)
                    ]
                    in_progress.append((work, calls))
                    # Small batches have few slices, so more of them keep all threads busy.
                    if len(in_progress) > ahead and sum(len(own[1]) for own in in_progress) > num:
                        yield self._finished(*in_progress.popleft())
                while in_progress:
                    yield self._finished(*in_progress.popleft())
        finally:
            pool.close(wait=not self._late)

    def _slice_size(self, count: int, num: int) -> int:
        """Return the most records of a slice of a batch of ``count``: one slice for each thread."""
        if not self.read.decodes:  # two threads would not copy faster than one
            return max(1, count)
        return max(LEAST_SLICE, -(-count // max(1, num)))

    def _finished(self, work: Work, calls: list[Future[None]]) -> Batch:
        end = time.monotonic() + self.timeout_s
        for call in calls:
            try:
                call.result(max(0.0, end - time.monotonic()))
            except TimeoutError as error:
                if call.done():  # raised by the user's transform
                    raise
                self._late = True
                which = f" (records {work.request.indices[:4].tolist()}...)"
                raise self._too_late(which) from error
        return self._counted(Timed(self.read.finish(work), work.slices_s, work.slow))

    def _too_late(self, which: str = "") -> ResourceError:
        where = f"workers.timeout_s = {self.timeout_s:g}"
        fix = "check the disk and the transform, or raise workers.timeout_s"
        return ResourceError(106, where, f"no batch came within that time{which}", fix)

    def _by_processes(self, requests: Iterable[Request], num: int, ahead: int) -> Generator[Batch]:
        made = self._loader
        if made is not None and (made.num_workers, made.prefetch_factor) != (num, ahead):
            self.close()
        if self._loader is None:
            with quiet():
                self._loader = DataLoader(
                    _ReaderDataset(self.read),
                    batch_size=None,
                    sampler=self._requests,
                    num_workers=num,
                    prefetch_factor=ahead,
                    persistent_workers=True,
                    collate_fn=_unchanged,
                    worker_init_fn=partial(_start_worker, os.getpid()),
                    multiprocessing_context=self.start_method,
                    # With a timeout, torch would notice a dead worker only after that time.
                    # ``_results`` has the timeout instead.
                    timeout=0,
                    # The default would draw a number from the global generator.
                    generator=torch.Generator(),
                )
            stopping.close_at_end(self)
        self._requests.now = requests
        try:
            with closing(self._results(self._loader)) as results:
                yield from map(self._counted, results)
        except (RuntimeError, OSError, EOFError) as error:
            # torch raises these for a killed worker or a full /dev/shm.
            processes = _processes_of(self._loader)
            how = plain(error)
            known = {process.sentinel: process for process in processes}
            for sentinel in wait(list(known), DYING_S):
                process = known[sentinel]
                process.join()  # its exit code is known a moment later
                if process.exitcode < 0:
                    name = signal.Signals(-process.exitcode).name
                    how = f"process {process.pid} was killed by {name}"
                    break
            for process in processes:
                process.kill()  # one of them may hang
            self.close()
            if self._late:
                raise self._too_late() from error
            # A store that is truncated while it is mapped kills the process that reads it.
            self.read.check()
            what = f"a worker process was lost ({how})"
            fix = "look at memory and /dev/shm, or set workers.kind=thread"
            raise ResourceError(102, f"workers.num = {num}", what, fix) from error

    def _results(self, loader: Any) -> Generator[Timed]:
        self._since = time.monotonic()
        with stopping.blocked_signals(self.start_method), quiet():
            # If the last epoch was left early, this waits for its batches.
            results: Any = iter(loader)
        if results._worker_pids_set:  # noqa: SLF001
            # As long as torch knows the processes, the end of any child process may raise
            # RuntimeError at any line of the main thread. So the loss of a process is noticed where
            # a batch is awaited, and sooner than after torch's 5 s.
            torch_signals._remove_worker_pids(id(results))  # noqa: SLF001
            results._worker_pids_set = False  # noqa: SLF001
            look = partial(type(results)._try_get_data, proxy(results), LOOK_S)  # noqa: SLF001

            def look_in_time() -> Any:
                if time.monotonic() - self._since > self.timeout_s:
                    self._late = True
                    raise RuntimeError("no batch came in time")
                return look()

            results._try_get_data = look_in_time  # noqa: SLF001
        self._since = time.monotonic()
        while (result := next(results, None)) is not None:
            if isinstance(result, PacelineError):
                raise result
            yield result
            self._since = time.monotonic()

    def close(self) -> None:
        # Several threads may close: a program may end while a loader's thread waits for a batch.
        loader: Any = self._loader
        self._loader = None
        stopping.remove_at_end(self)
        processes = _processes_of(loader)
        if not processes:
            return
        iterator = loader._iterator  # noqa: SLF001
        # torch would wait 5 s for a worker that hangs, and in vain.
        iterator._workers_done_event.set()  # noqa: SLF001
        for queue in iterator._index_queues:  # noqa: SLF001
            queue.put(None)
        end = time.monotonic() + CLOSE_S
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
            process.kill()  # if it still lives
        # torch offers no public way to end its workers before garbage collection.
        iterator._shutdown_workers()  # noqa: SLF001
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
            # Of a process that was killed just after making it: torch removes its name at once.
            for process in processes:
                for path in Path("/dev/shm").glob(f"torch_{process.pid}_*"):  # noqa: S108  # torch's place
                    path.unlink(missing_ok=True)


def _processes_of(loader: Any) -> list[Any]:
    if loader is None or loader._iterator is None:  # noqa: SLF001
        return []
    return loader._iterator._workers  # noqa: SLF001


@final
@dataclass(eq=False)
class Ledger:
    """The slowest records of a source, in fixed memory. One thread adds, and any thread looks."""

    # those that were delivered, by number, for ``Waits``
    slow_batches: set[int] = field(default_factory=set[int])
    num_records: int = 0  # that were delivered
    num_slow: int = 0  # how often a record was slow
    slow_s: float = 0.0  # seconds of slow records, over all workers
    _number: int = 0  # of the next batch
    _is_slow: bool = False  # whether the next batch holds slow records
    # reads, seconds and bytes of records
    _kept: dict[int, tuple[int, float, int]] = field(default_factory=dict[int, Any])

    def begin(self) -> None:
        """Begin an epoch, a part of one, or epochs that are read without a stop."""
        self._number = 0
        self._is_slow = False
        self.slow_batches.clear()

    def add(self, reads: Iterable[SlowRead]) -> None:
        """Add the slow records of the next batch."""
        for read in reads:
            self._is_slow = True
            self.num_slow += 1
            self.slow_s += read.seconds
            if read.number not in self._kept and len(self._kept) >= MOST_KEPT:
                least = min(self._kept, key=lambda index: self._kept[index][1])
                if self._kept[least][1] >= read.seconds:
                    continue
                del self._kept[least]
            num_reads, seconds, _ = self._kept.get(read.number, (0, 0.0, 0))
            self._kept[read.number] = num_reads + 1, seconds + read.seconds, read.size_bytes

    def delivered(self, num_records: int) -> None:
        """Count a batch that is handed over."""
        self.num_records += num_records
        if self._is_slow:
            self.slow_batches.add(self._number)
            self._is_slow = False
        self._number += 1

    def report(self, read_s: float, name: Callable[[int], str]) -> SlowRecords | None:
        """Return what is known, or None if no record was slow.

        ``read_s`` are the seconds of all records, over all workers. ``name`` names a record.
        """
        if not self.num_slow:
            return None
        # A record that was slow once may have been unlucky, so all its slow reads count.
        every = self._kept.copy()
        records: list[SlowRecord] = []
        for index in sorted(every, key=lambda index: -every[index][1])[:MOST_SHOWN]:
            num_reads, seconds, size = every[index]
            records.append(SlowRecord(index, name(index), num_reads, seconds / num_reads, size))
        counts = self.num_slow, self.num_records
        return SlowRecords(records, *counts, self.slow_s, read_s, sorted(every))


@final
class _Pool:
    """Threads that run calls from a queue. The program can end even if one of them hangs."""

    def __init__(self, num: int) -> None:
        self._calls: SimpleQueue[tuple[Future[None], Callable[..., None], Any] | None]
        self._calls = SimpleQueue()
        self._is_stopped = False
        self.threads = [
            threading.Thread(target=self._run, name=f"paceline-reader-{n}", daemon=True)
            for n in range(num)
        ]
        for thread in self.threads:
            thread.start()
        stopping.stop_at_end(self)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> "Future[None]":
        future: Future[None] = Future()
        self._calls.put((future, call, arguments))
        if self._is_stopped:  # no thread may be left to make the call
            self.stop()
        return future

    def _run(self) -> None:
        is_limited = False
        while (task := self._calls.get()) is not None:
            future, call, arguments = task
            try:
                if not is_limited:
                    limit_threads(1)
                    is_limited = True
                future.set_result(call(*arguments))
            except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                future.set_exception(error)
            del task, future, call, arguments  # otherwise an idle thread keeps its last batch alive

    def close(self, wait: bool) -> None:
        """Drop the calls that wait in the queue, and end the threads."""
        stopping.remove_at_end(self)
        self.stop()
        if wait:
            for thread in self.threads:
                thread.join()

    def stop(self) -> None:
        self._is_stopped = True
        with suppress(Empty):
            while True:
                task = self._calls.get_nowait()
                if task is not None:
                    task[0].cancel()
        for _ in self.threads:
            self._calls.put(None)


class _Requests:
    """A sampler that yields the requests of the current ``map``, while the loader stays."""

    now: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Any]:
        """Yield requests without tensors, which would start a thread when they are sent."""
        for request in self.now:
            keys: Any = None if request.keys is None else request.keys.numpy()
            yield request._replace(indices=request.indices.numpy(), keys=keys)


@dataclass(eq=False)
class _ReaderDataset(Dataset[Any]):
    read: Reader

    def __getitem__(self, request: Any) -> Timed | PacelineError:
        """Return a batch. An error that cannot be pickled would hang the loader."""
        keys = None if request.keys is None else torch.from_numpy(request.keys)
        request = request._replace(indices=torch.from_numpy(request.indices), keys=keys)
        try:
            result = self.read.timed(request)
            return result._replace(batch=_shared(result.batch))
        except PacelineError as error:
            named, origin = type(error)(*error.args), error
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's code may raise anything
            where = f"records {request.indices[:4].tolist()}..."
            fix = "set workers.num=0 to see the error in the calling thread"
            named = user_code.user_error(error, about=where, fix=fix)
            named, origin = named or DataError(108, where, plain(error), fix), error
        named.add_note("".join(traceback.format_exception(origin)))
        return named


def _shared(batch: Batch) -> Batch:
    """Return a batch in shared memory. torch would move it in a thread whose errors are lost.

    Nests share one block, since each block takes a file descriptor.
    """
    try:
        for tensor in tensors(batch).values():
            tensor.share_memory_()
        nests = {name: own for name, own in batch.items() if isinstance(own, dict | list | tuple)}
        sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in leaves(nests)]
        if not sizes:
            return batch
        parts = iter(torch.empty(sum(sizes), dtype=torch.uint8).share_memory_().split(sizes))

        def moved(tensor: Tensor) -> Tensor:
            return next(parts)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

        return {**batch, **mapped(nests, moved)}
    except (RuntimeError, OSError) as error:
        what = f"a batch cannot be shared ({plain(error)})"
        fix = "make room in /dev/shm, lower batch_size, or set workers.kind=thread"
        raise ResourceError(102, "workers", what, fix) from error


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(parent: int, _: int) -> None:
    """Ignore signals in a worker process: its ``parent`` decides when to stop.

    torch's workers end within 5 s of their parent. With PR_SET_PDEATHSIG, a worker would already
    end with the prefetch thread that started it.
    """
    stopping.set_all(signal.SIG_IGN)
    # torch's worker would take whoever has adopted it for its parent, and never end.
    if stopping.has_ended(parent):
        os._exit(1)
