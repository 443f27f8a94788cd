"""Run the reader in this thread, a pool of threads, or processes, in the order of the requests."""

import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, final

import torch
from torch.utils.data import DataLoader, Dataset

from framework.contracts.batch import Batch, tensors
from framework.data.reader import BatchReader, ReadWork, Request, Timed, plain
from framework.errors import ConfigError, DataError, PacelineError, ResourceError, error_kinds
from framework.measure.stopwatch import Stages
from framework.system.native import crowded, limit_threads
from framework.system.stopping import deaf_children, set_all
from framework.system.user_code import user_error

AHEAD = 2  # batches under way: for threads, all share each; for processes, per process
# records: handing over a slice costs about as much as decoding 1/20 of a photograph
LEAST_SLICE = 8


@final
@dataclass
class Workers:
    """Workers that run a reader.

    Threads share a batch slice by slice, since decoding releases Python's lock. Processes read
    whole batches, for transforms that hold the lock. They start at the first ``map`` and live until
    ``close``. A ``map`` beside one that is not closed starts processes of its own.
    """

    read: BatchReader
    num: int  # 0: the caller's thread reads
    kind: str  # ``thread`` or ``process``
    timeout_s: float = 300.0  # the longest wait for a batch; after it, ResourceError R106
    start_method: str | None = None  # how processes start; None: the system's way

    def __post_init__(self) -> None:
        if self.kind not in ("thread", "process"):
            where = f"workers.kind = {self.kind}"
            raise ConfigError(107, where, "not a kind of worker", "choose thread or process")
        self.stages = Stages()  # of the batches handed over
        self._requests = _Requests()
        self._loader: DataLoader[Timed] | None = None
        self._busy = threading.Lock()  # torch's processes serve one iterator at a time
        self._late = False

    def map(self, requests: Iterable[Request]) -> Generator[Batch]:
        """Yield one batch per request, in order. The iterator may be closed early."""
        if self.num and self.kind == "process":
            return self._by_processes(requests)
        if self.num:
            return self._threads(requests)
        if self.read.decodes:
            return self._in_line(requests)
        return self._gathered(requests)

    def _in_line(self, requests: Iterable[Request]) -> Generator[Batch]:
        ahead = threading.current_thread() is not threading.main_thread()
        with crowded() if ahead else nullcontext():
            for request in requests:
                batch, slices_s = self.read.timed(request)
                self.stages.add_slices(slices_s)
                yield batch

    def _gathered(self, requests: Iterable[Request]) -> Generator[Batch]:
        """Read records in a minimal loop: without decoding, one read takes only about 40 us."""
        read = self.read
        sums_s = self.stages.sums_s
        for request in requests:
            start = perf_counter()
            batch = read(request)
            sums_s["read"] += perf_counter() - start
            yield batch

    def _threads(self, requests: Iterable[Request]) -> Generator[Batch]:
        pool = _Pool(self.num)
        under_way: deque[tuple[ReadWork, list[Future[None]]]] = deque()
        try:
            with crowded() if self.read.decodes else nullcontext():
                for request in requests:
                    under_way.append(self._submit(pool, request))
                    if len(under_way) > AHEAD:
                        yield self._finished(*under_way.popleft())
                while under_way:
                    yield self._finished(*under_way.popleft())
        finally:
            pool.close(wait=not self._late)

    def _submit(self, pool: "_Pool", request: Request) -> tuple[ReadWork, list[Future[None]]]:
        work = self.read.begin(request)
        count = len(request.indices)
        # Raw records are one slice, since two threads read no more of them than one. Others are a
        # slice per thread: smaller ones would end at the same time.
        step = max(1, count)
        if self.read.decodes:
            step = max(LEAST_SLICE, -(-count // self.num))
        return work, [
            pool.submit(self.read.fill, work, start, min(start + step, count))
            for start in range(0, max(1, count), step)
        ]

    def _finished(self, work: ReadWork, futures: list[Future[None]]) -> Batch:
        end = time.monotonic() + self.timeout_s
        for future in futures:
            try:
                future.result(max(0.0, end - time.monotonic()))
            except TimeoutError as error:
                if future.done():  # a timeout of the user's own
                    raise
                self._late = True
                raise self._too_late(work.request) from error
        batch = self.read.finish(work)
        self.stages.add_slices(work.slices_s)
        return batch

    def _too_late(self, request: Request | None = None) -> ResourceError:
        which = ""
        if request is not None:
            which = f" (records {request.indices[:4].tolist()}...)"
        where = f"workers.timeout_s = {self.timeout_s:g}"
        fix = "look at the disk or the transform, or raise workers.timeout_s"
        return ResourceError(106, where, f"no batch came within that time{which}", fix)

    def _by_processes(self, requests: Iterable[Request]) -> Generator[Batch]:
        if self._busy.acquire(blocking=False):
            try:
                yield from self._processes(requests)
            finally:
                self._busy.release()
            return
        others = replace(self)
        others.stages = self.stages
        try:
            yield from others.map(requests)
        finally:
            others.close()

    def _processes(self, requests: Iterable[Request]) -> Generator[Batch]:
        if self._loader is None:
            with _without_core_warning():
                self._loader = self._make_loader()
        self._requests.now = requests
        try:
            watched = _watched(self._loader, self.timeout_s, self._kill, self.start_method)
            with closing(watched) as results:
                for result in results:
                    if isinstance(result, Failure):
                        raise result.error()
                    self.stages.add_slices(result.slices_s)
                    yield result.batch
        except (RuntimeError, OSError, EOFError) as error:
            # torch's words for a killed worker or a full /dev/shm
            self._end_processes()
            if self._late:
                raise self._too_late() from error
            # a store that was truncated while it was mapped kills the process that reads it
            self.read.store.check()
            where = f"workers.num = {self.num}"
            what = f"a worker process was lost ({plain(error)})"
            fix = "look at memory and /dev/shm, or set workers.kind=thread"
            raise ResourceError(102, where, what, fix) from error

    def _make_loader(self) -> DataLoader[Timed]:
        return DataLoader(
            _Reads(self.read),
            batch_size=None,
            sampler=self._requests,
            num_workers=self.num,
            prefetch_factor=AHEAD,
            persistent_workers=True,
            collate_fn=_same,
            worker_init_fn=_start_worker,
            multiprocessing_context=self.start_method,
            # torch then checks every 5 s whether workers live; with a timeout it waits that long
            timeout=0,
            # the global random stream must not depend on the number of workers
            generator=torch.Generator(),
        )

    @property
    def _iterator(self) -> Any:
        """The iterator that the loader keeps with its processes, or None."""
        loader: Any = self._loader
        if loader is None:
            return None
        return loader._iterator  # noqa: SLF001

    def _kill(self) -> None:
        """End all processes because one hangs, so that torch stops waiting."""
        self._late = True
        if self._iterator is not None:
            for process in self._iterator._workers:  # noqa: SLF001
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def _end_processes(self) -> None:
        """End the processes now, without torch's SIGCHLD handler.

        While torch knows a dead process, its handler raises anywhere, whenever a child ends.
        """
        for _ in range(3):  # the handler may raise once more in here
            with suppress(RuntimeError):
                previous = signal.getsignal(signal.SIGCHLD)
                is_main = threading.current_thread() is threading.main_thread()
                if is_main:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    self.close()
                finally:
                    if is_main:
                        signal.signal(signal.SIGCHLD, previous)
                return

    def close(self) -> None:
        iterator = self._iterator
        if iterator is not None:
            # torch's only way that does not wait for garbage collection
            iterator._shutdown_workers()  # noqa: SLF001
            for process in iterator._workers:  # noqa: SLF001
                if process.is_alive():  # it hangs, and ignores torch's SIGTERM
                    process.kill()
                    process.join()
        self._loader = None


@contextmanager
def _without_core_warning() -> Generator[None]:
    """Silence torch's warning about more processes than cores.

    The user asked for them, and ``paceline diagnose`` says what they cost.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@final
class _Pool:
    """Threads that take calls from a queue. As daemons, they let the program end if one hangs."""

    def __init__(self, num: int) -> None:
        self._calls: SimpleQueue[tuple[Future[None], Any, tuple[Any, ...]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"paceline-reader-{n}", daemon=True)
            for n in range(num)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Any, *arguments: Any) -> "Future[None]":
        future: Future[None] = Future()
        self._calls.put((future, call, arguments))
        return future

    def _run(self) -> None:
        limit_threads(1)
        while (task := self._calls.get()) is not None:
            future, call, arguments = task
            try:
                future.set_result(call(*arguments))
            except BaseException as error:  # noqa: BLE001  # handed to the waiting thread
                future.set_exception(error)
            del task, future, call, arguments  # or the last batch lives as long as the thread

    def close(self, wait: bool) -> None:
        """Drop the calls that have not begun, and end the threads."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _watched(
    loader: Iterable[Any], timeout_s: float, late: Callable[[], None], start_method: str | None
) -> Generator[Any]:
    """Yield a loader's results. A thread calls ``late`` if the wait for one is too long."""
    since = time.monotonic()
    end = threading.Event()

    def look() -> None:
        while not end.wait(min(1.0, timeout_s / 4)):
            if time.monotonic() - since > timeout_s:
                late()
                return

    thread = threading.Thread(target=look, name="paceline-watch", daemon=True)
    thread.start()
    try:
        with _without_core_warning(), deaf_children(start_method):
            results = iter(loader)  # waits for the rest of an epoch that was left early
        while (result := next(results, None)) is not None:
            since = float("inf")
            yield result
            since = time.monotonic()
    finally:
        end.set()
        thread.join()


class Failure(NamedTuple):
    """An error as plain words, since an exception that does not pickle would hang the loader."""

    words: tuple[int, str, str, str]  # the arguments of the error
    kind: str  # the name of its class
    trace: str = ""  # the traceback in the worker

    def error(self) -> PacelineError:
        error = error_kinds()[self.kind](*self.words)
        if self.trace:
            error.add_note(self.trace)
        return error


class _Requests:
    """A sampler whose content changes while the DataLoader and its processes stay."""

    now: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        for request in self.now:
            yield request._replace(indices=request.indices.numpy())  # a tensor starts a thread


class _Reads(Dataset[Any]):
    """The reader as torch's DataLoader wants it. Runs in the worker process."""

    def __init__(self, read: BatchReader) -> None:
        self.read = read

    def __getitem__(self, request: Request) -> Timed | Failure:
        request = request._replace(indices=torch.from_numpy(request.indices))
        try:
            result = self.read.timed(request)
            _share(result.batch)
            return result
        except PacelineError as error:
            return _failure(error, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # anything a user's code may raise
            where = f"records {request.indices[:4].tolist()}..."
            fix = "try workers.num=0 to see it in place"
            named = user_error(error, about=where, fix=fix)
            return _failure(named or DataError(108, where, plain(error), fix), error)


def _share(batch: Batch) -> None:
    """Share a batch's memory here: an error in the thread that sends the batch would be lost."""
    try:
        for tensor in tensors(batch).values():
            tensor.share_memory_()
    except (RuntimeError, OSError) as error:
        what = f"a batch cannot be shared ({plain(error)})"
        fix = "make room in /dev/shm, lower batch_size, or set workers.kind=thread"
        raise ResourceError(102, "workers", what, fix) from error


def _failure(error: PacelineError, origin: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(origin))
    return Failure(error.args, type(error).__name__, trace)


def _same(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    """Ignore signals: a whole group gets them, and the parent, which decides, needs its batches.

    torch's worker checks every 5 s whether its parent lives. PR_SET_PDEATHSIG would end it with the
    prefetch thread that forked it.
    """
    set_all(signal.SIG_IGN)
