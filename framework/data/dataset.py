"""``data=dataset``: read a map-style Dataset of the user's own, as it is."""

import multiprocessing
import pickle
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import closing, suppress
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset

from framework.contracts.batch import Batch
from framework.contracts.data import Scales, SourceContext
from framework.contracts.records import Manifest
from framework.data.collate import Padding
from framework.data.item_reader import HOST, GeneratorMoved, ItemReader, Items
from framework.data.items import Collate, ItemForm, alike, check_names, fields_of
from framework.data.requests import Request, plain
from framework.data.source import WorkerSource, make_order
from framework.data.workers import Workers
from framework.errors import ConfigError, DataError, PacelineError, words_of
from framework.system.rng import (
    generator_mark,
    kept_generators,
    kept_own_generators,
    seed_host_generators,
)
from framework.system.user_code import raise_if_user_error

# Records that are tried if threads may read. Items that draw are refused before the first step
# unless less than about one record in 64 draws; later, they end the run.
MOST_TRIED = 64


@runtime_checkable
class Indexed(Protocol):
    """A capability of a Dataset: it has a record for each index."""

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class KnowsClasses(Protocol):
    """A capability of a Dataset: it knows the names of its classes, as torchvision's do."""

    classes: Any


class ItemTrial(NamedTuple):
    """What reading a few items shows."""

    item: Any  # record 0
    last: Any  # the last record
    draws: bool  # whether items draw random numbers
    repeats: bool  # whether an item is the same again after the generators were seeded alike


def dataset_source(
    data: Any,
    fields: Sequence[str] | None = None,
    collate: Collate | None = None,
    ragged: Sequence[str] | None = None,
    *,
    context: SourceContext,
) -> "DatasetSource":
    """Return a source of the items of a map-style Dataset.

    Args:
        data: The Dataset, such as a ``torch.utils.data.Dataset``. Its items are dicts, dataclasses
            or tuples.
        fields: The names of a tuple's values, or the wanted fields of a dict; None: all.
        collate: Makes a batch, of the same forms as an item, of a list of items. None: tensors,
            arrays and numbers are stacked, and other values become lists.
        ragged: The fields whose arrays differ in length. ``context.collate`` says what they become
            in a batch.
        context: The order, the workers and the other settings.

    Raises:
        ConfigError: C174 for a setting that has no effect here, C230 for threads that would share
            random numbers, C231 for anything but a map-style Dataset, C232 for wrong fields, C236
            for a Dataset that processes cannot get.
        DataError: D230 to D233 for items that make no batch.
        UserCodeError: U100 for an exception in the Dataset.
    """
    if ragged is not None and collate is not None:
        where = f"data.ragged = {ragged}, data.collate"
        raise ConfigError(232, where, "both join arrays", "leave one of them out")
    if isinstance(collate, partial):
        # Hydra's partial asks for permission at each call, which takes 80 us.
        collate = partial(collate.func, *collate.args, **collate.keywords)
    rows = check_names(ragged, "data.ragged") or ()
    form = ItemForm(check_names(fields), rows, context.collate, collate)
    return DatasetSource(data, form, context)


@final
class DatasetSource(WorkerSource[ItemReader]):
    """A Source over a Dataset of the user's own.

    Processes read it unless the user chooses threads: they have generators of their own, and no
    Dataset is written for several threads. Threads must not share generators, so items that draw
    random numbers need processes or the step's own thread. If a generator moves while another
    thread reads, processes read that batch and all later ones, and refuse items that draw.
    """

    def __init__(self, data: Any, form: ItemForm, context: SourceContext) -> None:
        where = split_name(context)
        refuse_transform(context)
        title = title_of(data)
        fix = "choose data=dataloader for a DataLoader or another iterable of batches"
        read = ItemReader(checked(data, where, fix), form, context.seed, title)
        num_records = length_of(data, where)
        order = make_order(num_records, title, context)
        super().__init__(read, order, context, "process", [Padding(form.lengths)])
        self._where = where
        self._process = self._processes(read, 1)
        self._instead: Workers | None = None  # of threads, once a generator has moved
        self.trial = self._tried(num_records)
        self.manifest = _manifest(read, self.trial.item, num_records)
        self._check_workers()

    def _tried(self, num_records: int) -> ItemTrial:
        """Try a few items and, if threads may read, many and ``collate``."""
        may_thread = self.workers.kind == "thread" or not self.workers.num
        trial = try_items(self.read, num_records, MOST_TRIED if may_thread else 2)
        self.read.draws = trial.draws
        if may_thread and min(num_records, self.order.batch_size) > 1:
            with suppress(PacelineError):  # the order may never join these two
                _try_collate(self.read, [trial.item, trial.last], [0, num_records - 1])
        return trial

    def _check_workers(self) -> None:
        """Raise ConfigError C230 or C236 for workers that cannot read this Dataset."""
        if self.draws and self.workers.kind == "thread" and self.workers.num:
            what = f"the items of {self.read.title} draw random numbers, which threads would share"
            fix = "leave it out: processes have generators of their own"
            raise ConfigError(230, "workers.kind = thread", what, fix)
        has_processes = self.workers.num and self.workers.kind == "process"
        if has_processes or self.draws:
            _check_sendable(self.read, self.context.start_method)

    @property
    def reads_on(self) -> bool:
        """False: what the program changes after an epoch may change the items of the next."""
        return False

    @property
    def draws(self) -> bool:
        """Whether items or ``collate`` are known to draw random numbers."""
        return self.read.draws

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        """Yield one batch per request, in order, for the thread that calls.

        Without workers, a loader's thread may read beside the step, which draws from the same
        generators. A process reads items that draw, then.
        """
        beside_step = threading.current_thread() is not threading.main_thread()
        if beside_step and self.draws and not self.workers.num:
            return self._process.map(requests)
        return self._watched(requests)

    def _watched(self, requests: Iterator[Request]) -> Generator[Batch]:
        """Yield the batches. Threads read only as long as no generator moves."""
        waiting: deque[Request] = deque()
        if self._instead is None:
            noted = _noted(requests, waiting)
            with suppress(GeneratorMoved), closing(self.workers.map(noted)) as batches:
                for batch in batches:
                    waiting.popleft()
                    yield batch
                return
            self._instead = self._refusing()
        yield from self._instead.map(chain(waiting, requests))

    def sample(self, count: int) -> Batch:
        with kept_own_generators(self.read.dataset):
            return super().sample(count)

    def read_batch(self, request: Request) -> Batch:
        try:
            return self.read(request)
        except GeneratorMoved:
            with closing(self._process.map([request])) as batches:
                return next(batches)

    def _refusing(self) -> Workers:
        """Return processes that refuse items that draw: threads have read ahead by now."""
        read = copy(self.read)
        read.draws = False
        read.refuses = "workers.num = 0"
        if self.workers.num:
            read.refuses = f"workers.kind = {self.workers.kind}"
        _check_sendable(read, self.context.start_method)
        return self._processes(read, max(1, self.workers.num))

    def _processes(self, read: ItemReader, num: int) -> Workers:
        """Return processes, which start when they are used."""
        context = self.context
        made = Workers(read, num, "process", context.worker_timeout_s, context.start_method)
        made.stages = self.workers.stages
        made.ledger = self.workers.ledger
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        lines: list[str] = []
        if self.draws and not self.workers.num:
            lines.append(
                f"{self._where}: its items draw random numbers: a process of its own reads them, "
                "unless the step's own thread does (loader=plain)"
            )
        if not self.trial.repeats:
            lines.append(
                f"{self._where}: record 0 of {self.read.title} changes from read to read, although "
                "random, numpy.random and torch are seeded for each record; does it have a "
                "generator of its own? Workers, ranks and resume change what is learned"
            )
        return tuple(lines)

    def close(self) -> None:
        super().close()
        self._process.close()
        if self._instead is not None:
            self._instead.close()


def split_name(context: SourceContext) -> str:
    """Return the key that describes the data of a source."""
    return "data.train" if context.training else "data.val"


def title_of(data: Any) -> str:
    """Return the name of an object's class, such as ``speech.Clips``."""
    kind = type(data)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def refuse_transform(context: SourceContext) -> None:
    """Raise ConfigError C174 for a transform, which only images in stores have."""
    transform = context.transform
    changes = transform.size is not None or transform.num_draws or isinstance(transform, Scales)
    if changes or transform.function is not None:
        what = "a Dataset of your own makes its own changes"
        fix = "set transform=none, and change the items there, or pack them with input=dataset"
        raise ConfigError(174, "transform", what, fix)


def checked(data: Any, where: str, fix: str) -> Items:
    """Return a map-style Dataset. ConfigError C231, with this ``fix``, for anything else."""
    place = f"{where} = {title_of(data)}"
    if isinstance(data, IterableDataset | str | bytes) or not isinstance(data, Indexed):
        raise ConfigError(231, place, "has no records by number (no __getitem__)", fix)
    if not isinstance(data, Sized):
        raise ConfigError(231, place, "has no number of records (no __len__)", fix)
    return data


def length_of(data: Any, where: str) -> int:
    """Return the number of records. U100 or DataError D233 for an exception."""
    try:
        return len(data)
    except Exception as error:
        raise_if_user_error(error, fix=f"correct it, or the arguments of {where}")
        place = f"the length of {title_of(data)}"
        raise DataError(233, place, plain(error), f"correct it, or {where}") from error


def try_items(read: ItemReader, num_records: int, most: int = 2) -> ItemTrial:
    """Read record 0, the last one and others between, and see whether they draw random numbers.

    An item draws if a generator has moved afterwards, or if another seed changes it: it may take
    its seed from ``torch.initial_seed()``. At ``most`` so many records are read.
    """
    with kept_generators(HOST), kept_own_generators(read.dataset):
        first, moved = _tried(read, 0, 1)
        other, moved_again = _tried(read, 0, 2)
        last, last_moved = _tried(read, num_records - 1, 1)
        draws = moved or moved_again or last_moved
        if not alike(first, other):
            repeats = alike(first, _tried(read, 0, 1)[0])
            return ItemTrial(first, last, draws=True, repeats=repeats)
        between = np.linspace(0, num_records - 1, most)[1:-1].astype(int)
        draws = draws or any(_draws(read, index) for index in np.unique(between).tolist())
        return ItemTrial(first, last, draws, repeats=True)


def _tried(read: ItemReader, index: int, seed: int) -> tuple[Any, bool]:
    """Return an item, and whether it moved a generator."""
    seed_host_generators(seed)
    mark = generator_mark()
    item = read.item(index)
    return item, mark != generator_mark()


def _draws(read: ItemReader, index: int) -> bool:
    """Return whether a record draws. One that cannot be read fails when it is needed."""
    with suppress(PacelineError):
        return _tried(read, index, 1)[1]
    return False


def _check_sendable(read: ItemReader, start_method: str | None) -> None:
    """Check that processes can get the Dataset. A forked one inherits it.

    ConfigError C236.
    """
    # Asking for the default would fix it, and the user's code could not set it any more.
    default = multiprocessing.get_all_start_methods()[0]
    method = start_method or multiprocessing.get_start_method(allow_none=True) or default
    if method == "fork":
        return
    try:
        pickle.Pickler(_Nowhere()).dump(read)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = f"{read.title} cannot be sent to a process ({words_of(error)})"
        fix = "use functions that a module defines, or set workers.start_method=fork"
        raise ConfigError(236, f"workers.start_method = {method}", what, fix) from error


@final
class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def _manifest(read: ItemReader, item: Any, num_records: int) -> Manifest:
    """Describe a Dataset by its first item."""
    batch = _try_collate(read, [item], [0])
    classes = classes_of(read.dataset)
    source = f"dataset {read.title}"
    return Manifest(num_records, fields_of(batch, read.form), classes, source=source)


def _try_collate(read: ItemReader, items: list[Any], indices: list[int]) -> Batch:
    """Return the batch of some items, and note whether ``collate`` draws."""
    work = read.begin(Request(0, torch.tensor(indices), training=False))
    work.items[:] = items
    batch = read.joined(work)
    read.draws |= bool(work.moved)
    return batch


def _noted(requests: Iterator[Request], waiting: deque[Request]) -> Iterator[Request]:
    """Yield requests, and append each to ``waiting``."""
    for request in requests:
        waiting.append(request)
        yield request


def classes_of(data: Any) -> list[str]:
    """Return the names of a Dataset's classes, or [] if it does not tell."""
    while isinstance(data, Subset):
        data = data.dataset
    if not isinstance(data, KnowsClasses) or not isinstance(data.classes, list | tuple):
        return []
    return [str(name) for name in data.classes]
