"""Items of a user's Dataset: their fields by name, and the batch that several of them make.

Nothing here knows where an item comes from.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from framework.contracts.batch import Batch, leaves
from framework.contracts.records import Field, Ragged
from framework.data.collate import LENGTH, collated
from framework.errors import ConfigError, DataError, ResourceError, words_of
from framework.system.no_memory import lacks_memory, memory_error

Record = dict[str, Any]  # a value by field
Collate = Callable[[list[Any]], Any]
NUMBERS = (bool, int, float, complex)
# NumPy's kinds of numbers that torch has, too, except the floats that are too long for it.
KINDS = "biufc"
LONGEST = 16  # bytes of a complex128
MISFITS = (RuntimeError, ValueError, TypeError, OverflowError)  # for values that torch cannot join


class ItemForm(NamedTuple):
    """How items become a batch.

    Attributes:
        names: The names of a tuple's values, or the wanted fields of a dict; None: all.
        ragged: The fields whose arrays differ in length.
        way: How ragged fields are put together: ``pad``, ``nested`` or ``list``.
        collate: The user's function from a list of items to a batch, instead.
        key: The option that gives ``names``, for messages.
    """

    names: Sequence[str] | None = None
    ragged: Sequence[str] = ()
    way: str = "pad"
    collate: Collate | None = None
    key: str = "data.fields"

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


def check_names(names: Any, key: str = "data.fields") -> tuple[str, ...] | None:
    """Return the option ``key`` as a tuple. ConfigError C232 if it is no list of names."""
    if names is None:
        return None
    is_list = isinstance(names, list | tuple) and bool(names)
    are_names = is_list and all(isinstance(name, str) and name for name in names)
    if not are_names or len(set(names)) != len(names):
        what = "must be a list of different names"
        fix = f"give {key}=[image,label], say"
        raise ConfigError(232, f"{key} = {names}", what, fix)
    return tuple(names)


def record_of(
    item: Any, names: Sequence[str] | None, where: str, key: str = "data.fields"
) -> Record:
    """Return the fields of an item by name.

    Args:
        item: A dict, a dataclass, or a tuple or list, whose values ``names`` names.
        names: The names of a tuple's values, or the fields of a dict that are wanted.
        where: The item's name in messages.
        key: The option that gives ``names``.

    Raises:
        DataError: D230 for an item of another form, or other fields than ``names``.
    """
    record = _named(item)
    if record is None:
        return _of_tuple(item, names, where, key)
    if names is None:
        return record
    _check_present(names, record, where, key)
    return {name: record[name] for name in names}


def _check_present(names: Iterable[str], record: Record, where: str, key: str) -> None:
    for name in names:
        if name not in record:
            what = f"has no field {name!r}, only {_listed(record)}"
            raise DataError(230, where, what, f"correct {key}, or the item")


def _named(item: Any) -> Record | None:
    """Return the values of an item that names them, or None."""
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


def _of_tuple(item: Any, names: Sequence[str] | None, where: str, key: str) -> Record:
    values = item
    if not isinstance(item, tuple | list):
        if names is None or len(names) != 1 or item is None:
            fix = "return a dict, a dataclass or a tuple"
            what = f"is a {type(item).__name__}, which has no fields"
            raise DataError(230, where, what, fix)
        values = (item,)
    if names is None:
        some = ",".join(["image", "label", *(f"field{n}" for n in range(2, len(values)))])
        what = f"is a {type(item).__name__} of {len(values)} values without names"
        raise DataError(230, where, what, f"name them, as in '{key}=[{some}]', or return a dict")
    if len(values) != len(names):
        what = f"has {len(values)} values, but {key} names {len(names)}"
        raise DataError(230, where, what, "give one name for each value")
    return dict(zip(names, values, strict=True))


def stacked(records: Sequence[Record], name: Callable[[int], str], form: ItemForm = AS_IS) -> Batch:
    """Return a batch: tensors, arrays and numbers are stacked, and other values become lists.

    Gray images of Pillow, or RGB ones, are stacked as uint8 [C, H, W] if they have one size.

    Args:
        records: The records of the batch, at least one.
        name: Returns the name of a record, by its place in the batch.
        form: Its ragged fields become what ``framework.data.collate`` says.

    Raises:
        DataError: D230 for a missing ragged field, D231 for other fields than those of the first
            record, D232 for a value that does not fit the first one.
    """
    first = records[0]
    for place, record in enumerate(records):
        if record.keys() != first.keys():
            what = f"has the fields {_listed(record)}, but {name(0)} has {_listed(first)}"
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
        if are_alike or (field in form.ragged and _is_picture(values[0])):
            values = [_pixels(value) for value in values]
        if field in form.ragged:
            batch |= _ragged(field, values, name, form.way)
        else:
            batch[field] = _column(field, values, name)
    return batch


def _listed(record: Record) -> str:
    return ", ".join(record) or "none"


def _column(field: str, values: list[Any], name: Callable[[int], str]) -> Any:
    """Return the values of a field as one tensor or as a list."""
    form = _form(values[0])
    for place, value in enumerate(values):
        if _form(value) != form:
            what = f"{field} is {_words(value)}, but {_words(values[0])} in {name(0)}"
            fix = f"return values of one shape, or add data.ragged=[{field}]"
            raise DataError(232, name(place), what, fix)
    if form is None:
        return values
    try:
        return _joined(values)
    except MISFITS as error:
        raise _misfit(field, name(0), error) from error


def _is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _pixels(value: Any) -> Any:
    """Return a gray or RGB image of Pillow as uint8 [1 or 3, H, W], and anything else as it is.

    The numbers of other images may be classes.
    """
    if not _is_picture(value) or value.mode not in ("L", "RGB"):
        return value
    planes = np.atleast_3d(np.asarray(value)).transpose(2, 0, 1)
    return torch.from_numpy(np.array(planes, order="C"))


def _ragged(field: str, values: list[Any], name: Callable[[int], str], way: str) -> Batch:
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
    try:
        arrays = [_native(value) for value in values]
        if way == "list":
            return {field: arrays}
        lengths = torch.tensor([len(array) for array in arrays])
        joined = Ragged(torch.cat(arrays), lengths)
        return collated(field, Field("", (None,)), joined, way)
    except MISFITS as error:
        raise _misfit(field, name(0), error) from error


def _misfit(field: str, where: str, error: Exception) -> DataError | ResourceError:
    if lacks_memory(error):
        return memory_error(error)
    what = f"{field} cannot be stacked ({words_of(error)})"
    fix = "return numbers that torch has, or give data.collate=mine.collate"
    return DataError(232, where, what, fix)


def _form(value: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the type and the shape of a value that can be stacked, or None."""
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


def _joined(values: list[Any]) -> Tensor:
    if isinstance(values[0], Tensor):
        return default_collate(values)  # in a worker process, straight into shared memory
    if isinstance(values[0], np.ndarray | np.generic):
        dtype = np.result_type(*{value.dtype for value in values})
        return default_collate([_native(value, dtype) for value in values])
    dtype = None
    if any(isinstance(value, float) for value in values):
        dtype = torch.float64  # as torch's own collate does
    return torch.tensor(values, dtype=dtype)


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


def alike(first: Any, second: Any) -> bool:
    """Return whether two items are the same, as far as numbers and texts tell."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _alike_arrays(first.detach().cpu().numpy(), second.detach().cpu().numpy())
    if _is_grid(first) and _is_grid(second):
        return _alike_arrays(np.asarray(first), np.asarray(second))
    if (record := _named(first)) is not None:
        return alike(list(record.items()), list((_named(second) or {}).items()))
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(alike(*pair) for pair in pairs)
    if isinstance(first, str | bytes | int | float | np.generic):
        return bool(first == second) or (first != first and second != second)  # noqa: PLR0124  # NaN
    return True


def _is_grid(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_picture(value)


def _alike_arrays(first: np.ndarray, second: np.ndarray) -> bool:
    same_form = first.shape == second.shape and first.dtype == second.dtype
    return same_form and first.tobytes() == second.tobytes()
