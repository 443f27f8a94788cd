"""``data=dataset``: read a map-style Dataset of the user's own, as it is."""

import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset

from framework.contracts.batch import Batch
from framework.contracts.data import SourceContext
from framework.contracts.records import Manifest
from framework.data.fields import Padding
from framework.data.items import (
    HOST,
    Collate,
    GeneratorMoved,
    ItemForm,
    ItemReader,
    alike,
    check_names,
    fields_of,
)
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

    reads_on = False  # what the program changes after an epoch may change the items of the next

    def __init__(self, data: Any, form: ItemForm, context: SourceContext) -> None:
        where = split_name(context)
        refuse_transform(context)
        title = title_of(data)
        fix = "choose data=dataloader for a DataLoader or another iterable of batches"
        read = ItemReader(checked(data, where, fix), form, context.seed, title)
        num_records = length_of(data, where)
        order = make_order(num_records, title, context)
        manifest = Manifest(num_records, {}, classes_of(data), source=f"dataset {title}")
        super().__init__(read, manifest, order, context, "process", [Padding(form.lengths)])
        workers = self.workers
        self._where = where
        self._process = self._processes(read, 1)
        self._instead: Workers | None = None  # of threads, once a generator has moved
        may_thread = workers.kind == "thread" or not workers.num
        self._trial = trial = try_items(read, num_records, MOST_TRIED if may_thread else 2)
        read.draws = trial.draws
        if may_thread and min(num_records, order.batch_size) > 1:
            with suppress(PacelineError):  # the order may never join these two
                self._try_collate([trial.item, trial.last], [0, num_records - 1])
        fields = fields_of(self._try_collate([trial.item], [0]), form)
        self.manifest = replace(manifest, fields=fields)
        if self.draws and workers.kind == "thread" and workers.num:
            what = f"the items of {title} draw random numbers, which threads would share"
            fix = "leave it out: processes have generators of their own"
            raise ConfigError(230, "workers.kind = thread", what, fix)
        if self.draws or (workers.num and workers.kind == "process"):
            self._check_sendable()

    @property
    def draws(self) -> bool:
        """Whether items or ``collate`` are known to draw random numbers."""
        return self.read.draws

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        """Yield one batch per request, in order, for the thread that calls.

        Without workers, a loader's thread may read beside the step, which draws from the same
        generators. A process reads items that draw, then. Threads read only as long as no generator
        moves.
        """
        beside_step = threading.current_thread() is not threading.main_thread()
        if beside_step and self.draws and not self.workers.num:
            yield from self._process.map(requests)
            return
        waiting: deque[Request] = deque()
        if self._instead is None:

            def noted() -> Generator[Request]:
                for request in requests:
                    waiting.append(request)
                    yield request

            with suppress(GeneratorMoved), closing(self.workers.map(noted())) as batches:
                for batch in batches:
                    waiting.popleft()
                    yield batch
                return
            self._check_sendable()
            read = copy(self.read)  # refuses items that draw: threads have read ahead by now
            read.draws = False
            workers = self.workers
            read.refuses = f"workers.kind = {workers.kind}" if workers.num else "workers.num = 0"
            self._instead = self._processes(read, max(1, workers.num))
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

    def _processes(self, read: ItemReader, num: int) -> Workers:
        context = self.context
        made = Workers(read, num, "process", context.worker_timeout_s, context.start_method)
        made.stages = self.workers.stages
        made.ledger = self.workers.ledger
        return made

    def _try_collate(self, items: list[Any], indices: list[int]) -> Batch:
        """Return the batch of some items, and note whether ``collate`` draws."""
        request = Request(0, torch.tensor(indices), training=False)
        batch, has_moved = self.read.joined(request, items)
        self.read.draws |= has_moved
        return batch

    def _check_sendable(self) -> None:
        """Check that processes can get the Dataset; a forked one inherits it. ConfigError C236."""
        # Asking for the default would fix it, and the user's code could not set it any more.
        default = multiprocessing.get_all_start_methods()[0]
        method = self.context.start_method or multiprocessing.get_start_method(allow_none=True)
        if (method or default) == "fork":
            return
        try:
            with Path(os.devnull).open("wb") as nowhere:
                pickle.dump(self.read, nowhere)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what = f"{self.read.title} cannot be sent to a process ({words_of(error)})"
            fix = "use functions that a module defines, or set workers.start_method=fork"
            where = f"workers.start_method = {method or default}"
            raise ConfigError(236, where, what, fix) from error

    @property
    def notes(self) -> tuple[str, ...]:
        lines = [*super().notes]
        if self.draws and not self.workers.num:
            lines.append(
                f"{self._where}: its items draw random numbers: a process of its own reads them, "
                "unless the step's own thread does (loader=plain)"
            )
        if not self._trial.repeats:
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
    changes = transform.size is not None or transform.num_draws or transform.scales
    if changes or transform.function is not None:
        what = "a Dataset of your own makes its own changes"
        fix = "set transform=none, and change the items there, or pack them with input=dataset"
        raise ConfigError(174, "transform", what, fix)


def checked(data: Any, where: str, fix: str) -> Any:
    """Return a map-style Dataset. ConfigError C231, with this ``fix``, for anything else."""
    place = f"{where} = {title_of(data)}"
    if isinstance(data, IterableDataset | str | bytes) or not hasattr(data, "__getitem__"):
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

    def tried(index: int, seed: int) -> tuple[Any, bool]:
        """Return an item, and whether it moved a generator."""
        seed_host_generators(seed)
        mark = generator_mark()
        item = read.item(index)
        return item, mark != generator_mark()

    with kept_generators(HOST), kept_own_generators(read.dataset):
        first, moved = tried(0, 1)
        other, moved_again = tried(0, 2)
        last, last_moved = tried(num_records - 1, 1)
        if not alike(first, other):
            return ItemTrial(first, last, draws=True, repeats=alike(first, tried(0, 1)[0]))
        draws = moved or moved_again or last_moved
        for index in np.unique(np.linspace(0, num_records - 1, most)[1:-1].astype(int)).tolist():
            with suppress(PacelineError):  # a record that cannot be read fails when it is needed
                draws = draws or tried(index, 1)[1]
        return ItemTrial(first, last, draws, repeats=True)


def classes_of(data: Any) -> list[str]:
    """Return the names of a Dataset's classes, or [] if it does not tell."""
    while isinstance(data, Subset):
        data = data.dataset
    if not isinstance(data, KnowsClasses) or not isinstance(data.classes, list | tuple):
        return []
    return [str(name) for name in data.classes]
