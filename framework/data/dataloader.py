"""``data=dataloader``: take the batches of a ready DataLoader, or of any iterable, as they come."""

import re
import signal
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from framework.contracts.batch import Batch, taken
from framework.contracts.data import MicroBatch, MicroBatches, SourceContext
from framework.contracts.records import Manifest
from framework.data.dataset import classes_of, refuse_transform, split_name, title_of
from framework.data.item_reader import HOST
from framework.data.items import check_names, fields_of, record_of
from framework.data.reader import plain
from framework.errors import ConfigError, DataError, PacelineError, UserCodeError
from framework.order.batches import Order
from framework.order.draws import record_seeds
from framework.system.rng import kept_generators, seed_host_generators
from framework.system.user_code import user_error, user_line

# A frame in the traceback that torch's workers send as text.
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

END: Any = object()  # there is no further batch; None may be one, if a wrong one


@runtime_checkable
class KnowsEpoch(Protocol):
    """A capability of a sampler or Dataset: it shuffles by the epoch, as DistributedSampler."""

    def set_epoch(self, epoch: int) -> Any: ...


def loader_source(
    data: Any,
    fields: Sequence[str] | None = None,
    num_batches: int | None = None,
    *,
    context: SourceContext,
) -> "LoaderSource":
    """Return a source of batches that somebody else makes.

    Args:
        data: A DataLoader, or any iterable of batches: dicts, dataclasses or tuples.
        fields: The names of a tuple's values, or the wanted fields of a dict; None: all.
        num_batches: Of an epoch; None: its length.
        context: The ranks, the accumulation and the seed. The rest belongs to ``data``.

    Raises:
        ConfigError: C174 for a setting that has no effect here, C232, C234 for anything that does
            not yield batches epoch after epoch, C235 for an unknown number of batches.
        DataError: D109 if there is no batch, D230, D233, D235 for what is no batch.
        UserCodeError: U100 for an exception in the user's code.
    """
    return LoaderSource(data, check_names(fields), num_batches, context)


@final
class LoaderSource:
    """A Source of ready batches. ``index`` counts an epoch's records, unless they bring their own.

    The generators of the host are seeded by (seed, epoch, rank) until the first batch is there, so
    that a DataLoader with ``shuffle=True`` repeats its order. Nothing steps before that batch.
    """

    graph_refusal = None

    def __init__(
        self,
        data: Any,
        names: Sequence[str] | None,
        num_batches: int | None,
        context: SourceContext,
    ) -> None:
        self._where = split_name(context)
        order = context.order(1)  # what it says of ranks and accumulation counts
        _refuse(context, order)
        self._rank = order.rank
        self._num_ranks = order.world_size
        self._first_size = 0  # records of the first batch
        self.context = context
        self.loader = _iterable(data, self._where)
        self.title = title_of(data)
        self.names = names
        self.num_batches = num_batches or self._length()
        batch = self.sample(1)
        size = self._first_size * order.accumulate * order.world_size
        num_steps = -(-self.num_batches // order.accumulate)
        self.order = Order(
            num_steps * size,
            size,
            context.seed,
            accumulate=order.accumulate,
            rank=order.rank,
            world_size=order.world_size,
        )
        classes: list[str] = []
        if isinstance(self.loader, DataLoader):
            classes = classes_of(self.loader.dataset)
        source = f"batches of {self.title}"
        self.manifest = Manifest(self.order.num_records, fields_of(batch), classes, source=source)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not promised."""
        if not self.context.training:
            return ()
        note = (
            f"{self._where}: {self.title} decides order, workers and random changes, and each rank "
            "has its own; resume reads the epoch's earlier batches again and drops them, which is "
            "exact only if they repeat. data=dataset promises all of it"
        )
        return (note,)

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        group = self.order.accumulate
        with closing(self._all_batches(epoch)) as batches:
            for step in range(self.order.num_steps):
                passes = list(islice(batches, group))
                # A pass weighs what it holds, so the step's last batch must be there.
                num_records = sum(len(batch["index"]) for batch in passes)
                if step < start:
                    continue
                for number, batch in enumerate(passes, 1):
                    weight = len(batch["index"]) / max(1, num_records)
                    yield MicroBatch(batch, weight, number == len(passes))

    def _all_batches(self, epoch: int) -> Generator[Batch]:
        """Yield the batches of an epoch. DataError D234 if there are too few."""
        position = 0
        with closing(self._iterated(epoch)) as batches:
            for number in range(self.num_batches):
                values = next(batches, END)
                if values is END:
                    what = f"ended after {number} of {self.num_batches} batches"
                    fix = f"correct it, or set data.num_batches={number}"
                    raise DataError(234, f"{self._where} = {self.title}", what, fix)
                batch = self._numbered(values, number, position)
                position += len(batch["index"])
                yield batch

    def sample(self, count: int) -> Batch:
        """Return the first records. Batches whose shapes differ are not joined."""
        batch = self._first_batches(count)
        if batch is None:
            place = f"{self._where} = {self.title}"
            raise DataError(109, place, "has no batches", "give it at least one")
        if len(batch["index"]) <= count:
            return batch
        return taken(batch, torch.arange(count))

    def stages(self) -> dict[str, float]:
        """Return {}: nobody measures the loader's own workers."""
        return {}

    def close(self) -> None:
        """End worker processes that the loader keeps."""
        loader: Any = self.loader
        if isinstance(self.loader, DataLoader) and loader._iterator is not None:  # noqa: SLF001
            # torch offers no public way to end its workers before garbage collection.
            loader._iterator._shutdown_workers()  # noqa: SLF001
            loader._iterator = None  # noqa: SLF001

    def _length(self) -> int:
        """Return the number of batches of an epoch. ConfigError C235 if nothing tells it."""
        try:
            if isinstance(self.loader, Sized):
                return len(self.loader)
        except TypeError:  # a DataLoader over a Dataset without a length
            pass
        what = f"{self.title} does not know its number of batches"
        fix = "give those of an epoch: data.num_batches=1000 (in Python num_batches=1000), say"
        raise ConfigError(235, "data.num_batches = null", what, fix)

    def _first_batches(self, count: int) -> Batch | None:
        """Join batches until they have ``count`` records, or the next one has other shapes."""
        batch: Batch | None = None
        with kept_generators(HOST), closing(self._iterated(0)) as batches:
            for number, values in enumerate(batches):
                if batch is None:
                    batch = self._numbered(values, number, 0)
                    self._first_size = len(batch["index"])
                else:
                    more = self._numbered(values, number, len(batch["index"]))
                    joined = _joined(batch, more)
                    if joined is None:
                        break
                    batch = joined
                if len(batch["index"]) >= count:
                    break
        return batch

    def _iterated(self, epoch: int) -> Generator[Any]:
        """Yield the batches of an epoch as they are. U100 or DataError D233 for an exception."""
        try:
            self._set_epoch(epoch)
            rank = torch.tensor([self._rank])
            with kept_generators(HOST):
                seed_host_generators(int(record_seeds(rank, self.context.seed, epoch)))
                with _without_interrupts():
                    batches = iter(self.loader)
                first = next(batches, END)
            if first is END:
                return
            yield first
            yield from batches
        except (PacelineError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error) from error

    def _set_epoch(self, epoch: int) -> None:
        """Tell the epoch to every part of the loader that shuffles by it."""
        parts: list[Any] = [self.loader]
        if isinstance(self.loader, DataLoader):
            parts += [self.loader.sampler, self.loader.batch_sampler, self.loader.dataset]
        for part in parts:
            if isinstance(part, KnowsEpoch):
                part.set_epoch(epoch)

    def _numbered(self, values: Any, number: int, position: int) -> Batch:
        """Return a batch with ``index``. ``position`` is the place of its first record."""
        where = f"batch {number} of {self.title}"
        batch = record_of(values, self.names, where)
        size = _size(batch)
        if size is None:
            fix = "return a tensor or a list of one value per record"
            raise DataError(235, where, "has no number of records", fix)
        index = batch.get("index")
        wanted = torch.int64, (size,)
        if not isinstance(index, Tensor) or (index.dtype, index.shape) != wanted:
            index = torch.arange(position, position + size) * self._num_ranks + self._rank
        return {**batch, "index": index}

    def _fault(self, error: BaseException) -> PacelineError:
        """Return the error for an exception in the loader, or in a worker process of its own."""
        where = f"{self._where} = {self.title}"
        fix = f"correct it, or {where}"
        fault = user_error(error, about=where, fix=fix) or _worker_error(error, fix)
        return fault or DataError(233, where, plain(error), fix)


def _refuse(context: SourceContext, order: Order) -> None:
    """Raise ConfigError C174 for settings that the loader would ignore."""
    refuse_transform(context)
    ignored = {
        "workers.num": context.num_workers or None,
        "workers.kind": context.worker_kind,
        "workers.start_method": context.start_method,
        "collate": None if context.collate == "pad" else context.collate,
        "limit": order.limit,
        "select": context.select,
        "fold": context.fold,
        "val_batch_size": context.val_batch_size,
        "order": context.order_choice and type(context.order_choice).__name__,
        "order.block_records": order.block,
        "parallel.virtual_ranks": order.virtual_ranks,
        "last": None if order.last == "short" else order.last,
    }
    for key, value in ignored.items():
        if value is not None:
            where = f"{key} = {value}, data = dataloader"
            what = "a DataLoader's batches come as they are"
            raise ConfigError(174, where, what, "set it in the DataLoader, or choose data=dataset")


def _iterable(data: Any, where: str) -> Iterable[Any]:
    """Return what can be iterated epoch after epoch. ConfigError C234 for anything else."""
    place = f"{where} = {title_of(data)}"
    if not isinstance(data, Iterable):
        fix = "return a DataLoader; for a Dataset choose data=dataset"
        raise ConfigError(234, place, "yields no batches (no __iter__)", fix)
    if isinstance(data, Iterator):
        fix = "return a DataLoader, a list, or an object whose __iter__ begins anew"
        raise ConfigError(234, place, "yields its batches only once", fix)
    return data


def _size(batch: Batch) -> int | None:
    """Return the number of records of a batch, or None."""
    for value in batch.values():
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    return next((len(value) for value in batch.values() if isinstance(value, list)), None)


def _joined(batch: Batch, more: Batch) -> Batch | None:
    """Return the records of both, or None if they cannot be joined."""
    if batch.keys() != more.keys():
        return None
    joined: Batch = {}
    for name, value in batch.items():
        other = more[name]
        if isinstance(value, Tensor) and isinstance(other, Tensor):
            if value.shape[1:] != other.shape[1:] or not value.dim():
                return None
            joined[name] = torch.cat([value, other])
        elif isinstance(value, list) and isinstance(other, list):
            joined[name] = [*value, *other]
        else:
            return None
    return joined


def _worker_error(error: BaseException, fix: str) -> UserCodeError | None:
    """Return error U100 if torch tells, as text, of an exception in the user's code."""
    text = str(error)
    frames = FRAME.findall(text)
    if "DataLoader worker" not in text or not frames:
        return None
    last_line = text.strip().splitlines()[-1]
    for file, line, function in reversed(frames):
        if (place := user_line(file, int(line))) is not None:
            return UserCodeError(100, place, f"in {function}: {last_line}", fix)
    return None


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Block Ctrl-C in the processes that start here: the parent decides when to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
