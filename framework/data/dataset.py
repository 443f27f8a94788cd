"""``data=dataset``: read a map-style Dataset of the user's own, as it is.

A Dataset draws from the generators of ``random``, ``numpy.random`` and torch. The reader seeds them
before each item by (seed, epoch, record): neither workers nor ranks nor resuming change an item.
It reads in a process or in the step's thread: two threads would share the generators.
"""

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import field as dataclass_field
from dataclasses import fields as dataclass_fields
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, default_collate

from framework import errors
from framework.contracts.batch import Batch, leaves
from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest, Ragged
from framework.data.fields import LENGTH, collated
from framework.data.reader import LEAST_S, Reader, Request, Usual, Work, plain
from framework.data.source import WorkerSource, make_order
from framework.data.workers import Workers
from framework.errors import ConfigError, DataError, PacelineError, UserRecordError, words_of
from framework.measure.clock import Stopwatch
from framework.order.draws import record_seeds
from framework.store.store_facts import StoreFacts
from framework.system import rng, user_code

Record = dict[str, Any]  # a value by field
Collate = Callable[[list[Any]], Any]
MISFITS = (RuntimeError, ValueError, TypeError, OverflowError)  # for values that torch cannot join
HOST = torch.device("cpu")
MOST_NAMED = 4  # records of a batch that a message lists


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


class ItemForm(NamedTuple):
    """How items become a batch."""

    names: Sequence[str] | None = None  # of a tuple's values, or a dict's wanted fields; None: all
    ragged: Sequence[str] = ()  # the fields whose arrays differ in length
    way: str = "pad"  # how ragged fields are put together: ``pad``, ``nested`` or ``list``
    collate: Collate | None = None  # the user's function from a list of items to a batch, instead
    key: str = "data.fields"  # the option that gives ``names``, for messages

    @property
    def lengths(self) -> dict[str, str]:
        """The fields that ``pad`` adds to a batch, by the field that they count."""
        return {name: f"{name}{LENGTH}" for name in self.ragged} if self.way == "pad" else {}


AS_IS = ItemForm()


@final
@dataclass(eq=False)
class ItemReader(Reader):
    """A reader of batches of items, each with ``index``. It can be pickled if the Dataset can."""

    dataset: Any
    form: ItemForm
    seed: int
    title: str  # the Dataset's name in messages
    _usual: Usual = dataclass_field(default_factory=Usual, init=False)

    def fill(self, work: Work, start: int, stop: int) -> None:
        watch = Stopwatch()
        request = work.request
        indices = request.indices[start:stop]
        seeds = record_seeds(request.keys_of(start, stop), self.seed, request.epoch)
        items: list[Any] = []
        seconds: list[float] = []
        with rng.kept_generators(HOST):
            for index, seed in zip(indices.tolist(), seeds.tolist(), strict=True):
                rng.seed_host_generators(seed)
                begun = perf_counter()
                items.append(self.item(index))
                seconds.append(perf_counter() - begun)
        work.parts[start] = items
        if watch.mark("read") > LEAST_S:  # quick items would notice the rest
            work.slow.extend(self._usual.slow(indices, seconds, lambda _: 0))
        work.slices_s.append(watch.stages_s)

    def finish(self, work: Work) -> Batch:
        """Return the batch, once all its slices are filled.

        DataError D230 to D232 if the items cannot be joined; U100 or D233 if ``collate`` fails.
        """
        watch = Stopwatch()
        parts = [work.parts[start] for start in sorted(work.parts)]
        batch = self.joined(work.request, [*chain(*parts)])
        watch.mark("collate")
        work.slices_s.append(watch.stages_s)
        return batch

    def joined(self, request: Request, items: list[Any]) -> Batch:
        numbers = request.indices.tolist()
        collate = self.form.collate
        if collate is None:
            records = [self.record(*pair) for pair in zip(items, numbers, strict=True)]
            values = stacked(records, lambda place: self.name(numbers[place]), self.form)
            return {"index": request.indices, **values}
        some = ", ".join(map(str, numbers[:MOST_NAMED]))
        if len(numbers) > MOST_NAMED:
            some += f", ... ({len(numbers)})"
        where = f"records {some} of {self.title}"
        try:
            with rng.kept_generators(HOST):
                # No item has a seed of the epoch ~epoch, which is negative.
                key = record_seeds(request.keys_of(0, 1), self.seed, ~request.epoch)
                rng.seed_host_generators(int(key))
                made = collate(items)
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error, where) from error
        batch = record_of(made, self.form.names, f"the batch of {where}")
        return batch | {"index": request.indices}

    def item(self, index: int) -> Any:
        """Return what the Dataset has at ``index``. U100 or DataError D233 for an exception."""
        try:
            return self.dataset[index]
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error, self.name(index)) from error

    def record(self, item: Any, index: int) -> Record:
        """Return the fields of an item by name. DataError D230 for others, or a field ``index``."""
        where = self.name(index)
        record = record_of(item, self.form.names, where, self.form.key)
        if "index" in record:
            what = "has a field 'index', which a batch needs for the records' numbers"
            fix = f"rename it, or choose the other fields with {self.form.key}=[...]"
            raise DataError(230, where, what, fix)
        return record

    def name(self, index: int) -> str:
        return f"record {index} of {self.title}"

    def _fault(self, error: BaseException, where: str) -> PacelineError:
        fix = "correct it, or see it with debug=trace workers.num=0 loader=plain"
        fault = user_code.user_error(error, about=where, fix=fix, kind=UserRecordError)
        return fault or DataError(233, where, plain(error), fix)


@final
class DatasetSource(WorkerSource[ItemReader]):
    """A Source over a Dataset of the user's own.

    Processes read it, or the thread of the step: items may draw from the generators of a process,
    and no Dataset is written for several threads. A loader's thread lets one process read for it.
    """

    reads_on = False  # what the program changes after an epoch may change the items of the next

    def __init__(self, data: Any, form: ItemForm, context: SourceContext) -> None:
        self._where = where = split_name(context)
        refuse_transform(context)
        title = title_of(data)
        fix = "choose data=dataloader for a DataLoader or another iterable of batches"
        read = ItemReader(checked(data, where, fix), form, context.seed, title)
        num_records = length_of(data, where)
        labels = data.targets if isinstance(data, KnowsTargets) else None
        order = make_order(num_records, title, context, StoreFacts(None, labels))
        manifest = Manifest(num_records, {}, classes_of(data), source=f"dataset {title}")
        super().__init__(read, manifest, order, context, "process", form.lengths)
        if self.workers.kind == "thread" and self.workers.num:
            what = f"threads would share the random numbers and the files of {title}"
            fix = "leave it out: processes have generators of their own"
            raise ConfigError(230, "workers.kind = thread", what, fix)
        how = "process", context.worker_timeout_s, context.start_method
        self._process = Workers(read, 1, *how)  # reads for a thread
        self._process.stages, self._process.ledger = self.workers.stages, self.workers.ledger
        first, self.draws = try_items(read, num_records)  # whether items draw random numbers
        batch = read.joined(Request(0, torch.tensor([0]), training=False), [first])
        self.manifest = replace(manifest, fields=fields_of(batch, form))
        if self.workers.num:
            self._check_sendable()

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        if self.workers.num or threading.current_thread() is threading.main_thread():
            return self.workers.map(requests)
        self._check_sendable()
        return self._process.map(requests)

    def read_batch(self, request: Request) -> Batch:
        if threading.current_thread() is threading.main_thread():
            return self.read(request)
        with closing(self._process.map([request])) as batches:
            return next(batches)

    def sample(self, count: int) -> Batch:
        with rng.kept_own_generators(self.read.dataset):
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
        who_reads = "a process of its own reads the items, unless the step's own thread does"
        return (*super().notes, f"{self._where}: {who_reads} (loader=plain)")

    def close(self) -> None:
        super().close()
        self._process.close()


# ---- a user's Dataset


@runtime_checkable
class KnowsClasses(Protocol):
    """A capability of a Dataset: it knows the names of its classes, as torchvision's do."""

    classes: Any


@runtime_checkable
class KnowsTargets(Protocol):
    """A capability of a Dataset: it knows the class of each record, as torchvision's do."""

    targets: Any


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
        fix = "set transform=none, and change the items there, or pack them with input=dataset"
        raise ConfigError(174, "transform", "a Dataset of your own makes its own changes", fix)


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
        user_code.raise_if_user_error(error, fix=f"correct it, or the arguments of {where}")
        place = f"the length of {title_of(data)}"
        raise DataError(233, place, plain(error), f"correct it, or {where}") from error


def try_items(read: ItemReader, num_records: int) -> tuple[Any, bool]:
    """Return record 0, and whether it or the last record draws random numbers."""
    with rng.kept_generators(HOST), rng.kept_own_generators(read.dataset):
        rng.seed_host_generators(1)
        mark = rng.generator_mark()
        first = read.item(0)
        read.item(num_records - 1)
        return first, mark != rng.generator_mark()


def classes_of(data: Any) -> list[str]:
    """Return the names of a Dataset's classes, or [] if it does not tell."""
    while isinstance(data, Subset):
        data = data.dataset
    if not isinstance(data, KnowsClasses) or not isinstance(data.classes, list | tuple):
        return []
    return [str(name) for name in data.classes]


# ---- the fields of an item


def check_names(names: Any, key: str = "data.fields") -> tuple[str, ...] | None:
    """Return the option ``key`` as a tuple. ConfigError C232 if it is no list of names."""
    if names is None:
        return None
    is_list = isinstance(names, list | tuple) and bool(names)
    are_names = is_list and all(isinstance(name, str) and name for name in names)
    if not are_names or len(set(names)) != len(names):
        fix = f"give {key}=[image,label], say"
        raise ConfigError(232, f"{key} = {names}", "must be a list of different names", fix)
    return tuple(names)


def record_of(
    item: Any, names: Sequence[str] | None, where: str, key: str = "data.fields"
) -> Record:
    """Return the fields of an item: a dict, a dataclass, or a tuple or list that ``names`` names.

    DataError D230 for another item, or other fields than the ``names`` of the option ``key``.
    """
    record: Record | None = None
    if isinstance(item, Mapping):
        record = {str(name): value for name, value in item.items()}
    elif is_named_tuple(item):
        record = item._asdict()  # this method's name begins with _ lest a field has it
    elif is_dataclass(item) and not isinstance(item, type):
        record = {own.name: getattr(item, own.name) for own in dataclass_fields(item)}
    if record is not None:
        if names is None:
            return record
        _check_present(names, record, where, key)
        return {name: record[name] for name in names}
    kind = type(item).__name__
    if not isinstance(item, tuple | list):
        if names is None or len(names) != 1 or item is None:
            fix = "return a dict, a dataclass or a tuple"
            raise DataError(230, where, f"is a {kind}, which has no fields", fix)
        item = (item,)
    if names is None:
        some = ",".join(["image", "label", *(f"field{n}" for n in range(2, len(item)))])
        what = f"is a {kind} of {len(item)} values without names"
        raise DataError(230, where, what, f"name them, as in '{key}=[{some}]', or return a dict")
    if len(item) != len(names):
        what = f"has {len(item)} values, but {key} names {len(names)}"
        raise DataError(230, where, what, "give one name for each value")
    return dict(zip(names, item, strict=True))


def _check_present(names: Iterable[str], record: Record, where: str, key: str) -> None:
    for name in names:
        if name not in record:
            what = f"has no field {name!r}, only {', '.join(record) or 'none'}"
            raise DataError(230, where, what, f"correct {key}, or the item")


def is_named_tuple(item: Any) -> bool:
    """Return whether an item is a tuple whose values have names, as a NamedTuple's have."""
    return isinstance(item, tuple) and hasattr(item, "_asdict")


# ---- the batch of several records


def stacked(records: Sequence[Record], name: Callable[[int], str], form: ItemForm = AS_IS) -> Batch:
    """Return a batch: tensors, arrays and numbers are stacked, and other values become lists.

    Gray images of Pillow, or RGB ones, are stacked as uint8 [C, H, W] if they have one size. Ragged
    fields become what ``framework.data.fields.collated`` says. ``name`` returns the name of a
    record, by its place in the batch.

    DataError D230 for a missing ragged field, D231 for other fields than those of the first record,
    D232 for a value that does not fit the first one.
    """
    first = records[0]
    for place, record in enumerate(records):
        if record.keys() != first.keys():
            own = ", ".join(record) or "none"
            what = f"has the fields {own}, but {name(0)} has {', '.join(first) or 'none'}"
            raise DataError(231, name(place), what, "return the same fields for every item")
    _check_present(form.ragged, first, name(0), "data.ragged")
    for length in first.keys() & form.lengths.values():
        what = f"has a field {length!r}, which collate=pad adds"
        raise DataError(231, name(0), what, "rename it, or set collate=list")
    batch: Batch = {}
    for field in first:
        values = [record[field] for record in records]
        are_pictures = all(map(_is_picture, values))
        are_alike = are_pictures and len({(own.mode, own.size) for own in values}) == 1
        is_ragged = field in form.ragged
        if are_alike or (is_ragged and _is_picture(values[0])):
            for place, image in enumerate(values):
                if _is_picture(image) and image.mode in ("L", "RGB"):  # others may be classes
                    planes = np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)
                    values[place] = torch.from_numpy(np.array(planes, order="C"))
        join = _joined_rows if is_ragged else _column
        try:
            batch |= join(field, values, name, form.way)
        except MISFITS as error:
            if errors.lacks_memory(error):
                raise errors.memory_error(error) from error
            what = f"{field} cannot be stacked ({words_of(error)})"
            fix = "return numbers that torch has, or give data.collate=mine.collate"
            raise DataError(232, name(0), what, fix) from error
    return batch


def _column(field: str, values: list[Any], name: Callable[[int], str], _: str) -> Batch:
    form = _form(values[0])
    for place, value in enumerate(values):
        if _form(value) != form:
            what = f"{field} is {_words(value)}, but {_words(values[0])} in {name(0)}"
            fix = f"return values of one shape, or add data.ragged=[{field}]"
            raise DataError(232, name(place), what, fix)
    if form is None:
        return {field: values}
    if form[0] == "number":
        are_floats = any(isinstance(value, float) for value in values)
        # as torch's own collate does
        return {field: torch.tensor(values, dtype=torch.float64 if are_floats else None)}
    if form[0] == "array":
        dtype = np.result_type(*{value.dtype for value in values})
        values = [_native(value, dtype) for value in values]
    return {field: default_collate(values)}  # in a worker process, straight into shared memory


def _joined_rows(field: str, values: list[Any], name: Callable[[int], str], way: str) -> Batch:
    """Return what a batch has of arrays of different lengths. With ``list``, all sizes differ."""
    for place, value in enumerate(values):
        _, shape = _form(value) or ("", ())
        if not shape:
            what = f"{field} is {_words(value)}, and data.ragged wants an array"
            raise DataError(232, name(place), what, f"leave {field} out of data.ragged")
        if way != "list" and shape[1:] != tuple(values[0].shape[1:]):
            what = f"{field} is {_words(value)}, but {_words(values[0])} in {name(0)}"
            fix = "return arrays that differ in their first size alone, or set collate=list"
            raise DataError(232, name(place), what, fix)
    arrays = [_native(value) for value in values]
    if way == "list":
        return {field: arrays}
    joined = Ragged(torch.cat(arrays), torch.tensor([len(array) for array in arrays]))
    return collated(field, Field("", (None,)), joined, way)


def _is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _form(value: Any) -> tuple[str, tuple[int, ...]] | None:
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape)
    if isinstance(value, np.ndarray | np.generic) and is_number(value.dtype):
        return "array", value.shape
    if isinstance(value, bool | int | float | complex):
        return "number", ()
    return None


def is_number(dtype: "np.dtype[Any]") -> bool:
    """Return whether torch may have numbers of this dtype: not those of ``longdouble``."""
    if dtype.kind == "c":
        return dtype.itemsize <= 16
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def _native(value: Any, dtype: "np.dtype[Any] | None" = None) -> Tensor:
    if isinstance(value, Tensor):
        return value
    dtype = (dtype or value.dtype).newbyteorder("=")
    return torch.from_numpy(np.require(value, dtype, ("C", "W")))


def _words(value: Any) -> str:
    kind, shape = _form(value) or (type(value).__name__, ())
    return f"a {kind} of the shape {list(shape)}" if shape else f"a {kind}"


def fields_of(batch: Batch, form: ItemForm = AS_IS) -> dict[str, Field]:
    """Return the fields of a batch of one record: its tensors, without the first dimension."""
    tensor_fields: dict[str, Field] = {}
    for name, value in batch.items():
        if name == "index" or name in form.lengths.values():
            continue
        if name in form.ragged:
            rows = next(leaves(value))  # also of a list, and of ``Ragged``
            shape: tuple[int | None, ...] = (None, *rows.shape[1 + (form.way == "pad") :])
        elif isinstance(value, Tensor) and value.shape[:1] == (1,):
            rows = value
            shape = tuple(value.shape[1:])
        else:
            continue
        dtype = str(rows.dtype).removeprefix("torch.")
        if dtype in np.sctypeDict:  # NumPy has no bfloat16
            tensor_fields[name] = Field(dtype, shape)
    return tensor_fields
