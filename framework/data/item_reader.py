"""Read a batch of a user's Dataset: get the items, seed each of them, and collate them.

A Dataset draws from the generators of ``random``, ``numpy.random`` and torch, which belong to the
whole process. If items draw, the reader seeds these generators before each item by (seed, epoch,
record), so that neither workers nor ranks nor resuming change what an item is. Only the main thread
of a process seeds them: other threads would draw at the same time, in an order that changes from
run to run. A worker process has only its main thread.

Other threads watch the generators instead. If one moves while items are read, either they or the
step has drawn, which a thread cannot tell. The batch is refused, and a process reads it again.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.data.items import Collate, ItemForm, Record, record_of, stacked
from framework.data.ledger import LEAST_S, SlowRead, Usual
from framework.data.requests import Request, Timed, plain
from framework.errors import ConfigError, DataError, PacelineError, UserRecordError
from framework.measure.stopwatch import Stopwatch
from framework.order.draws import record_seeds
from framework.system.rng import (
    generator_mark,
    kept_generators,
    num_restored,
    seed_host_generators,
)
from framework.system.user_code import user_error

HOST = torch.device("cpu")
_TimedItem = tuple[Any, float]  # an item, and the seconds that it took

MOST_NAMED = 4  # records of a batch that a message lists
# A small step with dropout on two cores moved a generator during 1 of 80 slices.
ATTEMPTS = 4


class GeneratorMoved(Exception):
    """A generator moved in each attempt of a thread to read the records of a batch."""


class Items(Protocol):
    """A map-style Dataset, such as a ``torch.utils.data.Dataset``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ItemWork(NamedTuple):
    """A batch whose items are being read. Threads may fill slices of it at the same time.

    Attributes:
        request: The records of the batch.
        items: The items in the order of the batch. None stands for an item that was not read yet.
        slices_s: Seconds by stage: a dict for each slice, and one for ``finish``.
        slow: The items that took many times as long as the usual one.
        moved: The slices beside which a generator moved, and whose items may have drawn from it.
    """

    request: Request
    items: list[Any]
    slices_s: list[dict[str, float]]
    slow: list[SlowRead]
    moved: list[Tensor]


@final
class ItemReader:
    """A reader of batches of items. It adds the field ``index`` to each batch.

    It can be pickled if the Dataset can.

    Args:
        dataset: The user's Dataset.
        form: How items become a batch.
        seed: The run's seed.
        title: The Dataset's name in messages.

    Attributes:
        draws: Whether items or ``collate`` draw random numbers. Seeding takes as long as making a
            small item. If ``draws`` is false, the main thread reads items without seeding until a
            slice of a batch, or ``collate``, changes a generator. Such a slice is read again. Later
            items are seeded.
        refuses: The setting that forbids items that draw, such as ``workers.kind = thread``. They
            raise ConfigError C230. "": They are seeded.
    """

    decodes = True

    def __init__(self, dataset: Items, form: ItemForm, seed: int, title: str) -> None:
        self.dataset = dataset
        self.form = form
        self.seed = seed
        self.title = title
        self.draws = True
        self.refuses = ""
        self._usual = Usual()

    def __call__(self, request: Request) -> Batch:
        return self.timed(request).batch

    def timed(self, request: Request) -> Timed:
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s, work.slow)

    def begin(self, request: Request) -> ItemWork:
        return ItemWork(request, [None] * len(request.indices), [], [], [])

    def fill(self, work: ItemWork, start: int, stop: int) -> None:
        watch = Stopwatch()
        indices = work.request.indices[start:stop]
        with own_generators() as may_seed:
            if may_seed:
                keys = work.request.keys_of(start, stop)
                items = self._seeded(indices, keys, work.request.epoch)
            else:
                items = self._watched(work, indices)
        work.items[start:stop] = [item for item, _ in items]
        if watch.mark("read") > LEAST_S:  # quick items would notice the rest
            seconds = [item_s for _, item_s in items]
            work.slow.extend(self._usual.slow(indices, seconds, lambda _: 0))
        work.slices_s.append(watch.stages_s)

    def _timed_item(self, index: int) -> _TimedItem:
        begun = perf_counter()
        return self.item(index), perf_counter() - begun

    def _watched(self, work: ItemWork, indices: Tensor) -> list[_TimedItem]:
        """Return the items at ``indices``, and note in ``work`` if they may have drawn.

        A step in another thread moves a generator by chance, but items that draw always do. So a
        few attempts tell them apart, if reading is quick.
        """
        items: list[_TimedItem] = []
        for _ in range(ATTEMPTS):
            mark = _shared_mark()
            items = list(map(self._timed_item, indices.tolist()))
            if _shared_mark() == mark:
                return items
        work.moved.append(indices)
        return items

    def _seeded(self, indices: Tensor, keys: Tensor, epoch: int) -> list[_TimedItem]:
        """Return the items at ``indices``. Seed by ``keys`` before each one if items draw."""
        numbers = indices.tolist()
        if not self.draws:
            mark = generator_mark()
            items = list(map(self._timed_item, numbers))
            if generator_mark() == mark:
                return items
            self._note_draws(f"reading records {_listed(numbers)} of {self.title}")
        items = []
        seeds = record_seeds(keys, self.seed, epoch).tolist()
        for index, seed in zip(numbers, seeds, strict=True):
            seed_host_generators(seed)
            items.append(self._timed_item(index))
        return items

    def _note_draws(self, work: str) -> None:
        """Seed all items from now on. ConfigError C230 if threads have read them."""
        if self.refuses:
            what = f"{work} draws random numbers, which threads would share with the step"
            fix = "set workers.kind=process and workers.num=1 or more"
            raise ConfigError(230, self.refuses, what, fix)
        self.draws = True

    def finish(self, work: ItemWork) -> Batch:
        """Return the batch, once all its slices are filled.

        Raises:
            DataError: D230 to D232 if the items cannot be joined, D233 if a library that
                ``collate`` uses fails.
            UserCodeError: U100 if ``collate`` itself fails.
            GeneratorMoved: Items or ``collate`` may have drawn in this or another thread.
        """
        watch = Stopwatch()
        batch: Batch = {}
        if not work.moved:
            batch = self.joined(work)
        if work.moved:
            raise GeneratorMoved
        watch.mark("collate")
        work.slices_s.append(watch.stages_s)
        return batch

    def joined(self, work: ItemWork) -> Batch:
        """Return the batch as ``finish`` does, even if a generator has moved."""
        return {"index": work.request.indices, **self._collated(work)}

    def check(self) -> None:
        """Do nothing: only the Dataset knows its files."""

    def item(self, index: int) -> Any:
        """Return what the Dataset has at ``index``.

        Raises:
            DataError: D233 if a library that the Dataset uses fails.
            UserCodeError: U100 if the Dataset itself fails.
        """
        try:
            return self.dataset[index]
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error, self.name(index)) from error

    def record(self, item: Any, index: int) -> Record:
        """Return the fields of an item by name.

        Raises:
            DataError: D230 if it lacks a field, or has a field ``index``.
        """
        where = self.name(index)
        record = record_of(item, self.form.names, where, self.form.key)
        if "index" in record:
            what = "has a field 'index', which a batch needs for the records' numbers"
            fix = f"rename it, or choose the other fields with {self.form.key}=[...]"
            raise DataError(230, where, what, fix)
        return record

    def name(self, index: int) -> str:
        """Return a record's name for errors."""
        return f"record {index} of {self.title}"

    def _collated(self, work: ItemWork) -> Batch:
        """Return the batch of all items, without ``index``."""
        numbers = work.request.indices.tolist()
        collate = self.form.collate
        if collate is None:
            pairs = zip(work.items, numbers, strict=True)
            records = [self.record(item, index) for item, index in pairs]
            return stacked(records, lambda place: self.name(numbers[place]), self.form)
        where = f"records {_listed(numbers)} of {self.title}"
        try:
            batch = self._called(collate, work, where)
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error, where) from error
        made = record_of(batch, self.form.names, f"the batch of {where}")
        return {name: value for name, value in made.items() if name != "index"}

    def _called(self, collate: Collate, work: ItemWork, where: str) -> Any:
        """Call ``collate``, and see whether it draws."""
        request = work.request
        with own_generators() as may_seed:
            if not may_seed:
                return self._watched_collate(collate, work)
            # No item has a seed of the epoch ~epoch, which is negative.
            key = record_seeds(request.keys_of(0, 1), self.seed, ~request.epoch)
            seed_host_generators(int(key))
            mark = generator_mark()
            batch = collate(work.items)
            if generator_mark() != mark:
                self._note_draws(f"joining {where}")
            return batch

    def _watched_collate(self, collate: Collate, work: ItemWork) -> Any:
        """Call ``collate``, and note in ``work`` if it may have drawn. It may change the items."""
        mark = _shared_mark()
        batch = collate(work.items)
        if _shared_mark() != mark:
            work.moved.append(work.request.indices)
        return batch

    def _fault(self, error: BaseException, where: str) -> PacelineError:
        """Return the error for an exception in the user's code, or in a library that it uses."""
        fix = "correct it, or see it with debug=trace workers.num=0 loader=plain"
        fault = user_error(error, about=where, fix=fix, kind=UserRecordError)
        return fault or DataError(233, where, plain(error), fix)


@contextmanager
def own_generators() -> Generator[bool]:
    """Yield whether the generators may be seeded, and restore them afterwards if so."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    with kept_generators(HOST):
        yield True


def _shared_mark() -> tuple[Any, ...]:
    """Return a mark of generators that another thread may move, and restore afterwards."""
    return num_restored(), *generator_mark()


def _listed(numbers: list[int]) -> str:
    some = ", ".join(map(str, numbers[:MOST_NAMED]))
    if len(numbers) > MOST_NAMED:
        some += f", ... ({len(numbers)})"
    return some
