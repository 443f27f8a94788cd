"""``data=dataset``: read a map-style Dataset of the user's own, as it is."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch.utils.data import IterableDataset, Subset

from framework.contracts.batch import Batch
from framework.contracts.data import SourceContext
from framework.contracts.records import Manifest
from framework.data.items import HOST, Collate, ItemForm, ItemReader, check_names, fields_of
from framework.data.requests import Request, plain
from framework.data.source import WorkerSource, make_order
from framework.data.workers import Workers
from framework.errors import ConfigError, DataError, words_of
from framework.system.rng import (
    generator_mark,
    kept_generators,
    kept_own_generators,
    seed_host_generators,
)
from framework.system.user_code import raise_if_user_error


@runtime_checkable
class KnowsClasses(Protocol):
    """A capability of a Dataset: it knows the names of its classes, as torchvision's do."""

    classes: Any


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
        ConfigError: C174 for a setting that has no effect here, C230 for threads, C231 for anything
            but a map-style Dataset, C232 for wrong fields, C236 for a Dataset that processes cannot
            get.
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

    Processes read it, or the thread of the step: items may draw from the generators of a process,
    and no Dataset is written for several threads. A loader's thread lets one process read for it.
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
        super().__init__(read, manifest, order, context, "process", form.lengths)
        if self.workers.kind == "thread" and self.workers.num:
            what = f"threads would share the random numbers and the files of {title}"
            fix = "leave it out: processes have generators of their own"
            raise ConfigError(230, "workers.kind = thread", what, fix)
        self._where = where
        how = "process", context.worker_timeout_s, context.start_method
        self._process = Workers(read, 1, *how)  # reads for a thread
        self._process.stages, self._process.ledger = self.workers.stages, self.workers.ledger
        first, self.draws = try_items(read, num_records)  # whether items draw random numbers
        batch = read.joined(Request(0, torch.tensor([0]), training=False), [first])
        self.manifest = replace(manifest, fields=fields_of(batch, form))
        if self.workers.num:
            self._check_sendable()

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        if self.workers.num or _is_main_thread():
            return self.workers.map(requests)
        self._check_sendable()
        return self._process.map(requests)

    def read_batch(self, request: Request) -> Batch:
        if _is_main_thread():
            return self.read(request)
        with closing(self._process.map([request])) as batches:
            return next(batches)

    def sample(self, count: int) -> Batch:
        with kept_own_generators(self.read.dataset):
            return super().sample(count)

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
        if self.workers.num:
            return super().notes
        whose = "a process of its own reads the items, unless the step's own thread does"
        return (*super().notes, f"{self._where}: {whose} (loader=plain)")

    def close(self) -> None:
        super().close()
        self._process.close()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


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


def try_items(read: ItemReader, num_records: int) -> tuple[Any, bool]:
    """Return record 0, and whether it or the last record draws random numbers."""
    with kept_generators(HOST), kept_own_generators(read.dataset):
        seed_host_generators(1)
        mark = generator_mark()
        first = read.item(0)
        read.item(num_records - 1)
        return first, mark != generator_mark()


def classes_of(data: Any) -> list[str]:
    """Return the names of a Dataset's classes, or [] if it does not tell."""
    while isinstance(data, Subset):
        data = data.dataset
    if not isinstance(data, KnowsClasses) or not isinstance(data.classes, list | tuple):
        return []
    return [str(name) for name in data.classes]
