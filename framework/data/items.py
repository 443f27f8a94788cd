"""Items of a user's Dataset: their fields by name, the batch of several, and a reader of batches.

A Dataset draws from the generators of ``random``, ``numpy.random`` and torch, which belong to the
whole process. The reader seeds them before each item by (seed, epoch, record), so that neither
workers nor ranks nor resuming change what an item is. So it reads in a process of its own, or in
the thread of the step: two threads would share the generators.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from framework.contracts.batch import Batch, leaves
from framework.contracts.records import Field, Ragged
from framework.data.fields import LENGTH, collated
from framework.data.requests import LEAST_S, Request, Timed, Usual, Work, plain
from framework.errors import (
    ConfigError,
    DataError,
    PacelineError,
    UserRecordError,
    lacks_memory,
    memory_error,
    words_of,
)
from framework.measure.clock import Stopwatch
from framework.order.draws import record_seeds
from framework.system.rng import kept_generators, seed_host_generators
from framework.system.user_code import user_error

Record = dict[str, Any]  # a value by field
Collate = Callable[[list[Any]], Any]
NUMBERS = (bool, int, float, complex)
# NumPy's kinds of numbers that torch has, too, except the floats that are too long for it.
KINDS = "biufc"
LONGEST = 16  # bytes of a complex128
MISFITS = (RuntimeError, ValueError, TypeError, OverflowError)  # for values that torch cannot join
HOST = torch.device("cpu")
MOST_NAMED = 4  # records of a batch that a message lists


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
        if self.way != "pad":
            return {}
        return {name: f"{name}{LENGTH}" for name in self.ragged}


AS_IS = ItemForm()


@runtime_checkable
class Named(Protocol):
    """A tuple whose values have names, as ``typing.NamedTuple`` makes it."""

    def _asdict(self) -> dict[str, Any]: ...


@final
class ItemReader:
    """A reader of batches of items, each with ``index``. It can be pickled if the Dataset can.

    Args:
        dataset: The user's map-style Dataset.
        form: How items become a batch.
        seed: The run's seed.
        title: The Dataset's name in messages.
    """

    decodes = True

    def __init__(self, dataset: Any, form: ItemForm, seed: int, title: str) -> None:
        self.dataset = dataset
        self.form = form
        self.seed = seed
        self.title = title
        self._usual = Usual()

    def __call__(self, request: Request) -> Batch:
        return self.timed(request).batch

    def timed(self, request: Request) -> Timed:
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s, work.slow)

    def begin(self, request: Request) -> Work:
        return Work(request, {}, [], [], {})

    def fill(self, work: Work, start: int, stop: int) -> None:
        watch = Stopwatch()
        request = work.request
        indices = request.indices[start:stop]
        seeds = record_seeds(request.keys_of(start, stop), self.seed, request.epoch)
        items: list[Any] = []
        seconds: list[float] = []
        with kept_generators(HOST):
            for index, seed in zip(indices.tolist(), seeds.tolist(), strict=True):
                seed_host_generators(seed)
                begun = perf_counter()
                items.append(self.item(index))
                seconds.append(perf_counter() - begun)
        work.parts[start] = items
        if watch.mark("read") > LEAST_S:  # quick items would notice the rest
            work.slow.extend(self._usual.slow(indices, seconds, lambda _: 0))
        work.slices_s.append(watch.stages_s)

    def finish(self, work: Work) -> Batch:
        """Return the batch, once all its slices are filled.

        Raises:
            DataError: D230 to D232 if the items cannot be joined, D233 for a fault of a library.
            UserCodeError: U100 if ``collate`` fails.
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
            with kept_generators(HOST):
                # No item has a seed of the epoch ~epoch, which is negative.
                key = record_seeds(request.keys_of(0, 1), self.seed, ~request.epoch)
                seed_host_generators(int(key))
                made = collate(items)
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(error, where) from error
        batch = record_of(made, self.form.names, f"the batch of {where}")
        return batch | {"index": request.indices}

    def check(self) -> None:
        """Do nothing: only the Dataset knows its files."""

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
        fault = user_error(error, about=where, fix=fix, kind=UserRecordError)
        return fault or DataError(233, where, plain(error), fix)


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

    DataError D230, which says ``where``, for an item of another form, or other fields than the
    ``names`` that the option ``key`` gives.
    """
    record = _named(item)
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


def _named(item: Any) -> Record | None:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in fields(item)}
    if _has_names(type(item)):
        named: Any = item  # this method's name begins with _ lest a field has it
        return named._asdict()
    return None


@cache
def _has_names(kind: type) -> bool:
    """Return whether a class is a named tuple's. Python takes 10 us to look, per item."""
    return issubclass(kind, tuple) and issubclass(kind, Named)


# ---- the batch of several records


def stacked(records: Sequence[Record], name: Callable[[int], str], form: ItemForm = AS_IS) -> Batch:
    """Return a batch: tensors, arrays and numbers are stacked, and other values become lists.

    Gray images of Pillow, or RGB ones, are stacked as uint8 [C, H, W] if they have one size.

    Args:
        records: The records of the batch, at least one.
        name: Returns the name of a record, by its place in the batch.
        form: Its ragged fields become what ``framework.data.fields.collated`` says.

    Raises:
        DataError: D230 for a missing ragged field, D231 for other fields than those of the first
            record, D232 for a value that does not fit the first one.
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
            if lacks_memory(error):
                raise memory_error(error) from error
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
    if isinstance(value, NUMBERS):
        return "number", ()
    return None


def is_number(dtype: "np.dtype[Any]") -> bool:
    """Return whether torch may have numbers of this dtype."""
    return dtype.kind in KINDS and dtype.itemsize <= (LONGEST if dtype.kind == "c" else 8)


def _native(value: Any, dtype: "np.dtype[Any] | None" = None) -> Tensor:
    """Return an array as a tensor, which shares its memory if possible."""
    if isinstance(value, Tensor):
        return value
    dtype = (dtype or value.dtype).newbyteorder("=")
    return torch.from_numpy(np.require(value, dtype, ("C", "W")))


def _words(value: Any) -> str:
    form = _form(value)
    if form is None:
        return f"a {type(value).__name__}"
    kind, shape = form
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
