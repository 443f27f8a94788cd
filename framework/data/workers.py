"""Who runs the reader: this thread, a pool of threads, or worker processes. The order of the results is the order of the requests."""

import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
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
LEAST_SLICE = (
    8  # records: handing over a slice costs about as much as decoding 1/20 of a photograph
)


@contextmanager
def _unwarned() -> Generator[None]:
    """Without torch's word about more processes than cores: the user asked for them, and 'paceline diagnose' says what they cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@final
class Workers:
    """``map`` runs ``read`` over requests with ``num`` workers of a ``kind``: ``thread`` or ``process``; 0: in the caller's thread.

    Threads share a batch slice by slice: decoding releases the GIL. Processes read whole batches, for transforms that hold it; they are
    started at the first ``map`` and live until ``close``; a ``map`` beside one that is not closed has processes of its own. ``timeout_s``: longest wait for a batch; ResourceError R106. ``stages``: the
    seconds of what was handed over, which processes send along with each batch.
    """

    def __init__(
        self,
        read: BatchReader,
        num: int,
        kind: str,
        timeout_s: float = 300.0,
        start_method: str | None = None,
    ) -> None:
        if kind not in ("thread", "process"):
            raise ConfigError(
                107, f"workers.kind = {kind}", "not a kind of worker", "choose thread or process"
            )
        self.read, self.num, self.kind, self.timeout_s, self.start_method = (
            read,
            num,
            kind,
            timeout_s,
            start_method,
        )
        self.stages = Stages()
        self._requests = _Requests()
        self._loader: DataLoader[Timed] | None = None
        self._busy = threading.Lock()  # torch's processes serve one iterator at a time
        self._late = False

    def map(self, requests: Iterable[Request]) -> Iterator[Batch]:
        """One batch per request, in order. Closing the iterator early is clean."""
        if self.num == 0:
            return self._in_line(requests) if self.read.decodes else self._gathered(requests)
        return self._threads(requests) if self.kind == "thread" else self._by_processes(requests)

    def _in_line(self, requests: Iterable[Request]) -> Iterator[Batch]:
        ahead = threading.current_thread() is not threading.main_thread()
        with crowded() if ahead else nullcontext():
            for request in requests:
                batch, slices_s = self.read.timed(request)
                self.stages.add_slices(slices_s)
                yield batch

    def _gathered(self, requests: Iterable[Request]) -> Iterator[Batch]:
        """Nothing but reading, in so few words that they are not seen beside the 40 us it takes."""
        read, sums_s = self.read, self.stages.sums_s
        for request in requests:
            start = perf_counter()
            batch = read(request)
            sums_s["read"] += perf_counter() - start
            yield batch

    def _threads(self, requests: Iterable[Request]) -> Iterator[Batch]:
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
        work, count = self.read.begin(request), len(request.indices)
        # a slice per thread: smaller ones would end at the same time, but of raw records two threads then read no more than one
        step = max(LEAST_SLICE, -(-count // self.num)) if self.read.decodes else max(1, count)
        return work, [
            pool.submit(self.read.fill, work, at, min(at + step, count))
            for at in range(0, max(1, count), step)
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
        which = "" if request is None else f" (records {request.indices[:4].tolist()}...)"
        fix = "look at the disk or the transform, or raise workers.timeout_s"
        return ResourceError(
            106,
            f"workers.timeout_s = {self.timeout_s:g}",
            f"no batch came within that time{which}",
            fix,
        )

    def _by_processes(self, requests: Iterable[Request]) -> Iterator[Batch]:
        if self._busy.acquire(blocking=False):
            try:
                yield from self._processes(requests)
            finally:
                self._busy.release()
            return
        others = Workers(self.read, self.num, self.kind, self.timeout_s, self.start_method)
        others.stages = self.stages
        try:
            yield from others.map(requests)
        finally:
            others.close()

    def _processes(self, requests: Iterable[Request]) -> Iterator[Batch]:
        if self._loader is None:
            with _unwarned():
                self._loader = self._make_loader()
        self._requests.now = requests
        try:
            with _Watch(self.timeout_s, self._kill, self.start_method) as watch:
                for result in watch.over(self._loader):
                    if isinstance(result, Failure):
                        raise result.error()
                    self.stages.add_slices(result.slices_s)
                    yield result.batch
        except (
            RuntimeError,
            OSError,
            EOFError,
        ) as error:  # torch's own words for a killed worker, a full /dev/shm
            for _ in range(3):  # torch's handler may raise once more, in here
                with suppress(RuntimeError):
                    self._give_up()
                    break
            if self._late:
                raise self._too_late() from error
            self.read.store.check()  # a store that was cut while it was mapped kills who reads it
            what = f"a worker process was lost ({plain(error)})"
            raise ResourceError(
                102,
                f"workers.num = {self.num}",
                what,
                "look at memory and /dev/shm, or set workers.kind=thread",
            ) from error

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
            timeout=0,  # torch then looks every 5 s whether the workers live; with a time it waits it out first
            generator=torch.Generator(),  # a private one: the global stream must not depend on the number of workers
        )

    def _kill(self) -> None:
        """A worker hangs: end all, so that torch finds them gone and stops waiting."""
        self._late = True
        iterator: Any = getattr(self._loader, "_iterator", None)
        for process in [] if iterator is None else iterator._workers:  # noqa: SLF001
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        """Ends the processes now: while a dead one is known to torch, its SIGCHLD handler raises, anywhere, at every child's end."""
        previous = signal.getsignal(signal.SIGCHLD)
        here = threading.current_thread() is threading.main_thread()
        if here:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self.close()
        finally:
            if here:
                signal.signal(signal.SIGCHLD, previous)

    def close(self) -> None:
        iterator: Any = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()  # noqa: SLF001  # torch's only way that does not wait for garbage collection
            for process in iterator._workers:  # noqa: SLF001
                if process.is_alive():  # it hangs, and torch's SIGTERM is ignored
                    process.kill()
                    process.join()
        self._loader = None


@final
class _Pool:
    """Threads that take calls from a queue. Daemons, unlike ``concurrent.futures``': one that hangs must not keep the program from ending."""

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
            except BaseException as error:  # noqa: BLE001  # handed to who waits for it, whatever it is
                future.set_exception(error)
            del task, future, call, arguments  # or the last batch lives as long as the thread

    def close(self, wait: bool) -> None:
        """What is not begun is dropped."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else []:
            thread.join()


@final
class _Watch:
    """Calls ``late`` from a thread of its own when a result is waited for longer than ``timeout_s``."""

    def __init__(self, timeout_s: float, late: Any, start_method: str | None) -> None:
        self.timeout_s, self.late = timeout_s, late
        self._start_method = start_method
        self._since = float("inf")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="paceline-watch", daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def over(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's results; only the waits for them are timed, not what the caller does with them."""
        results: Iterator[Any] | None = None
        while True:
            self._since = time.monotonic()
            try:
                if results is None:
                    with _unwarned(), deaf_children(self._start_method):
                        results = iter(loader)  # waits for what an epoch left early still does
                result = next(results)
            except StopIteration:
                return
            finally:
                self._since = float("inf")
            yield result

    def _look(self) -> None:
        while not self._end.wait(min(1.0, self.timeout_s / 4)):
            if time.monotonic() - self._since > self.timeout_s:
                self.late()
                return


class Failure(NamedTuple):
    """An error as plain words: an exception that does not pickle would hang the loader."""

    words: tuple[int, str, str, str]
    kind: str
    trace: str = ""

    def error(self) -> PacelineError:
        error = error_kinds()[self.kind](*self.words)
        if self.trace:
            error.add_note(self.trace)
        return error


class _Requests:
    """A sampler whose content changes from epoch to epoch, while the DataLoader and its processes stay."""

    now: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return (
            request._replace(indices=request.indices.numpy()) for request in self.now
        )  # a tensor would start a thread


def _share(batch: Batch) -> None:
    """Move a batch into shared memory here, where an error can be told: in the thread that sends it, it would be lost, and the batch with it."""
    try:
        for tensor in tensors(batch).values():
            tensor.share_memory_()
    except (RuntimeError, OSError) as error:
        fix = "make room in /dev/shm, lower batch_size, or set workers.kind=thread"
        raise ResourceError(
            102, "workers", f"a batch cannot be shared ({plain(error)})", fix
        ) from error


class _Reads(Dataset[Any]):
    """The reader as torch's DataLoader wants it. Runs in the worker process."""

    def __init__(self, read: BatchReader) -> None:
        self.read = read

    def __getitem__(self, request: Request) -> Timed | Failure:
        request = request._replace(indices=torch.from_numpy(request.indices))
        try:
            found = self.read.timed(request)
            _share(found.batch)
            return found
        except PacelineError as error:
            return Failure(
                error.args, type(error).__name__, "".join(traceback.format_exception(error))
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001  # anything a user's code may raise
            where, fix = (
                f"records {request.indices[:4].tolist()}...",
                "try workers.num=0 to see it in place",
            )
            told = user_error(error, about=where, fix=fix) or DataError(
                108, where, plain(error), fix
            )
            return Failure(
                told.args, type(told).__name__, "".join(traceback.format_exception(error))
            )


def _same(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    set_all(
        signal.SIG_IGN
    )  # a whole group is told to stop: the parent decides, and still needs its batches
    # torch's worker looks every 5 s whether its parent lives; PR_SET_PDEATHSIG would end it with the prefetch thread that forked it
