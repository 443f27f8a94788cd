"""Who runs the reader: this thread, a few threads, or worker processes. The order of the results is the order of the requests."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, final

import torch
from torch.utils.data import DataLoader, Dataset

from framework.batch import Batch
from framework.data.reader import Request
from framework.errors import ConfigError, DataError, PacelineError, ResourceError

Read = Callable[[Request], Batch]
AHEAD = 2  # requests per worker that are under way


@final
class Workers:
    """``map`` runs ``read`` over requests with ``num`` workers of a ``kind``: ``thread`` or ``process``; 0: in the caller's thread.

    Threads suit decoding, which releases the GIL; processes suit transforms that hold it. Processes are started at the first
    ``map`` and live until ``close``.
    """

    def __init__(self, read: Read, num: int, kind: str) -> None:
        if kind not in ("thread", "process"):
            raise ConfigError(107, f"workers.kind = {kind}", "not a kind of worker", "choose thread or process")
        self.read, self.num, self.kind = read, num, kind
        self._requests = _Requests()
        self._loader: DataLoader[Batch] | None = None

    def map(self, requests: Iterable[Request]) -> Iterator[Batch]:
        """One batch per request, in order. Closing the iterator early is clean."""
        if self.num == 0:
            return map(self.read, requests)
        return self._threads(requests) if self.kind == "thread" else self._processes(requests)

    def _threads(self, requests: Iterable[Request]) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self.num, "paceline-reader")
        under_way: deque[Future[Batch]] = deque()
        try:
            for request in requests:
                under_way.append(pool.submit(self.read, request))
                if len(under_way) >= self.num * AHEAD:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _processes(self, requests: Iterable[Request]) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = DataLoader(
                _Reads(self.read),
                batch_size=None,
                sampler=self._requests,
                num_workers=self.num,
                prefetch_factor=AHEAD,
                persistent_workers=True,
                collate_fn=_same,
                worker_init_fn=_start_worker,
                timeout=0,  # torch then looks every 5 s whether the workers live; with a time it waits it out first
                generator=torch.Generator(),  # a private one: the global stream must not depend on the number of workers
            )
        self._requests.now = requests
        try:
            for result in self._loader:
                if isinstance(result, Failure):
                    raise result.error()
                yield result
        except (RuntimeError, OSError, EOFError) as error:  # torch's own words for a killed worker, a full /dev/shm, a timeout
            for _ in range(3):  # torch's handler may raise once more, in here
                with suppress(RuntimeError):
                    self._give_up()
                    break
            what = f"a worker process was lost ({error})"
            raise ResourceError(
                102, f"workers.num = {self.num}", what, "look at memory and /dev/shm, or set workers.kind=thread"
            ) from error

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
        self._loader = None


class Failure(NamedTuple):
    """An error as plain words: an exception that does not pickle would hang the loader."""

    words: tuple[int, str, str, str]
    kind: str

    def error(self) -> PacelineError:
        kinds = {kind.__name__: kind for kind in PacelineError.__subclasses__()}
        return kinds[self.kind](*self.words)


class _Requests:
    """A sampler whose content changes from epoch to epoch, while the DataLoader and its processes stay."""

    now: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return (request._replace(indices=request.indices.numpy()) for request in self.now)  # a tensor would start a thread


class _Reads(Dataset[Any]):
    """The reader as torch's DataLoader wants it. Runs in the worker process."""

    def __init__(self, read: Read) -> None:
        self.read = read

    def __getitem__(self, request: Request) -> Batch | Failure:
        request = request._replace(indices=torch.from_numpy(request.indices))
        try:
            return self.read(request)
        except PacelineError as error:
            return Failure(error.args, type(error).__name__)
        except Exception as error:  # noqa: BLE001  # anything a user's code may raise
            words = (
                108,
                f"records {request.indices[:4].tolist()}...",
                f"{type(error).__name__}: {error}",
                "try workers.num=0 to see it in place",
            )
            return Failure(words, DataError.__name__)


def _same(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
