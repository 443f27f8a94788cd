"""What fields are, as ``input.kinds`` or ``data.kinds`` says.

``group`` is where the option stands, for errors: ``input`` for packing, or ``data``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError

RAGGED = "ragged"  # arrays whose number of rows differs from record to record
KINDS = (RAGGED, "text", "bytes", "boxes", "points")
EXAMPLE = "{boxes: boxes, joints: points, speech: ragged, file: bytes}"
OF_STRINGS: dict[str, type] = {"text": str, "bytes": bytes, "audio": bytes}


@runtime_checkable
class TakesKinds(Protocol):
    """A capability of an input: it makes its fields what ``kinds`` says, by name."""

    kinds: Mapping[str, str]


def checked_kinds(given: Any, group: str = "input") -> dict[str, str]:
    """Return a kind for each field. ConfigError C179 if they are not so given."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given.values()) <= set(KINDS):
        what = f"must map fields to {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        fix = f"give '{group}.kinds={EXAMPLE}', say"
        raise ConfigError(179, f"{group}.kinds = {given}", what, fix)
    return {str(name): kind for name, kind in given.items()}


def check_present(
    kinds: Mapping[str, str], fields: Mapping[str, Any], group: str = "input"
) -> None:
    """Check that there are such fields. ConfigError C179."""
    for name in kinds:
        if name not in fields:
            fix = f"its fields are {', '.join(fields)}"
            raise ConfigError(179, f"{group}.kinds.{name}", "is not a field", fix)


def check_label_maps(names: Sequence[str], fields: Mapping[str, Field], group: str) -> None:
    """Check that the option ``labels`` names fields of images. ConfigError C179."""
    for name in names:
        if name not in fields or fields[name].kind != "labels":
            fix = f"the fields are {', '.join(fields)}"
            what = f"{name} is not a field of images"
            raise ConfigError(179, f"{group}.labels = {list(names)}", what, fix)


def text_of(data: bytes, field: str, where: str, group: str) -> str:
    """Return the text of a field of that kind. DataError D162 unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fix = f"correct it, or add '{group}.kinds={{{field}: bytes}}'"
        raise DataError(162, where, "is not UTF-8 text", fix) from error


def of_kind(value: Any, kind: str, where: str, group: str = "input") -> Any:
    """Return a field's value as its kind has it: ``str``, ``bytes`` or an array.

    Boxes are float32 [n, 4], points float32.

    Raises:
        DataError: D167 for another value.
    """
    if kind in OF_STRINGS:
        if isinstance(value, OF_STRINGS[kind]):
            return value
        raise _misfit(value, where, f"{kind}, a Python {OF_STRINGS[kind].__name__}", group)
    array = np.asarray(value)
    is_number = array.dtype.kind in "biufc"
    if kind == RAGGED and is_number and array.ndim:
        return array
    if kind == "boxes" and is_number and (array.shape[1:] == (4,) or array.size == 0):
        return np.ascontiguousarray(array.reshape(-1, 4), np.float32)
    if kind == "points" and is_number and array.ndim and array.shape[-1] in (2, 3):
        return np.ascontiguousarray(array, np.float32)
    wanted = {
        "boxes": "boxes [n, 4]: left, top, right, bottom",
        "points": "points [..., 2] or [..., 3]: x, y and perhaps the visibility",
        RAGGED: "an array of at least one dimension",
    }
    raise _misfit(value, where, wanted[kind], group)


def field_of_kind(value: Any, kind: str) -> Field:
    """Return the field of a value that ``of_kind`` returned. Its number of rows may differ."""
    if kind in OF_STRINGS:
        return Field("uint8", (None,), kind=kind)
    if kind == RAGGED:
        kind = ""
    return Field(value.dtype.name, (None, *value.shape[1:]), kind=kind)


def as_rows(value: Any) -> np.ndarray:
    """Return a string as a store keeps it: uint8 [n]."""
    data = value.encode() if isinstance(value, str) else value
    return np.frombuffer(data, np.uint8)


def _misfit(value: Any, where: str, wanted: str, group: str) -> DataError:
    given = type(value).__name__
    if isinstance(value, np.ndarray):
        given = f"{value.dtype} {value.shape}"
    what = f"is {given}, and {group}.kinds wants {wanted}"
    return DataError(167, where, what, f"correct the record, or {group}.kinds")
