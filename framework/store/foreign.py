"""Files and values of other programs. ``group`` is that of an option, ``input`` or ``data``."""

import io
import math
import mmap
import os
import re
import shlex
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

import numpy as np

from framework.contracts.records import Field
from framework.errors import ConfigError, DataError, listed
from framework.store.files import read_head

LMDB_MAGIC = 0xBEEFC0DE
NPY = b"\x93NUMPY"
SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of an HDF5 file
TAR_MAGIC = b"ustar"  # at byte 257
TAR_MAGIC_AT = 257
GZIP = b"\x1f\x8b"
IDX = b"\0\0\x08"  # of an IDX file of unsigned bytes; the number of dimensions follows
COLUMNS = (".parquet", ".arrow")
TABLES = (".csv", ".tsv", ".tab")
FEATURES = "input.features={image: image/encoded, label: image/class/label}"  # the usual ones
IN_FOLDER = "data.mdb"  # the file in an LMDB environment that is a folder
MOST_FIELDS = 16  # in a suggested command; more patterns than that mean that keys are names
LONGEST_TEXT = 1000  # bytes of a text that may be a label
WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# Python's own numbers may also have underscores and the digits of any script.
NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE
)
LONG = re.compile(r"[+-]?\d{19,}", re.ASCII)  # perhaps a name: float32 would change it
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
USUAL_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
OTHER_WAY = "read it with input=function: 'paceline pack input=function --help'"
INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
DTYPES = {"bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"}  # torch's
# What libraries raise for damaged files.
DAMAGE = (ValueError, ArithmeticError, LookupError, RecursionError, OSError, EOFError, MemoryError)
BROKEN = (*DAMAGE, TypeError, SyntaxError, tokenize.TokenError)  # a .npy header, a Python literal
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Masks, the most compressible data that people keep, shrink 150 to 300 times. Deflate could
# shrink zeros 1032 times, and other formats any number of times.
MOST_EXPANSION = 300
MOST_SMALL_BYTES = 256 << 20  # allowed for a file of any size
INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)  # 007 is a name
MOST_CLASSES = 100_000  # larger labels number no class; ImageNet-21k has 21,841
RAGGED = "ragged"  # arrays whose number of rows differs from record to record
WANTED = {  # by kind: its values, for errors
    RAGGED: "an array of at least one dimension",
    "text": "text, a Python str",
    "bytes": "bytes, a Python bytes",
    "boxes": "boxes [n, 4]: left, top, right, bottom",
    "points": "points [..., 2] or [..., 3]: x, y and perhaps the visibility",
}
OF_STRINGS: dict[str, type] = {"text": str, "bytes": bytes, "audio": bytes}


class Format(NamedTuple):
    """A format: its name for errors, and the choice of ``data=`` that reads it."""

    name: str
    choice: str


def format_of(path: str) -> Format | None:
    """Return the format of a file or a folder of files, or None. DataError D101."""
    if os.path.isdir(path):
        names: list[str] = []
        with suppress(OSError):  # the reader of the folder says why
            names = [name.lower() for name in os.listdir(path)]
        if any(name.endswith(".tar") for name in names):
            return Format("a folder of .tar archives", "tar")
        if any(name.endswith(COLUMNS) for name in names):
            return Format("a folder of Parquet or Arrow files", "parquet")
        return None
    if not os.path.isfile(path):
        return None
    head = read_head(path, TAR_MAGIC_AT + len(TAR_MAGIC))
    if head[16:20] == LMDB_MAGIC.to_bytes(4, "little"):
        return Format("an LMDB file", "lmdb")
    if head.startswith(SIGNATURE):
        return Format("an HDF5 file", "hdf5")
    if head[TAR_MAGIC_AT:] == TAR_MAGIC:
        return Format("a .tar archive", "tar")
    is_stream = head.startswith(b"\xff\xff\xff\xff") and path.lower().endswith(".arrow")
    if is_stream or head.startswith((b"PAR1", b"ARROW1")):
        return Format("a Parquet or Arrow file", "parquet")
    return None


def refuse_other(path: str, choice: str) -> None:
    """Raise DataError D103, which says what to do, for a format that ``choice`` cannot read."""
    present = format_of(path)
    if present is None and os.path.isfile(path):
        head = read_head(path, len(NPY))
        name = os.path.basename(path).lower()
        what, words = "", [f"input.path={path}"]
        if head.startswith(NPY) or name.endswith(".npz"):
            what, words = "a .npy or .npz file", ["input=arrays", *words]
        elif name.endswith(TABLES):
            what, words = "a table", ["input=list", *words]
        elif ".tfrecord" in name:
            what, words = "a TFRecord file", ["input=tfrecord", *words, FEATURES]
        elif head.startswith(IDX) or "-idx" in name:
            images = path.replace("labels-idx1", "images-idx3")
            labels = path.replace("images-idx3", "labels-idx1")
            words = ["input=idx", f"input.images={images}", f"input.labels={labels}"]
            what = "an IDX file"
        if what:
            command = pack_command(path, *words)
            raise DataError(103, path, f"is {what}, but not a Paceline store", command)
    if present is None or present.choice == choice:
        return
    what = f"is {present.name}, which data={choice} does not read"
    fix = f"choose data={present.choice}"
    if choice in ("hdf5", "lmdb") and present.choice not in ("hdf5", "lmdb"):
        what = f"is {present.name}, but not a Paceline store"
        command = pack_command(path, f"input={present.choice}", f"input.path={path}")
        fix = f"read it as it lies with data={present.choice}, or {command}"
    raise DataError(103, path, what, fix)


def pack_command(path: str, *words: str) -> str:
    """Return the shell command with ``words`` that packs another program's file at ``path``."""
    path = path.rstrip("/")
    if Path(path).name in ("", ".."):  # the working directory, or a folder above it
        path = os.path.abspath(path)
    names = (f"{Path(path).with_suffix('')}.packed{number or ''}.h5" for number in count())
    output = next(name for name in names if not os.path.exists(name))
    quoted: list[str] = []
    for word in (*words, f"output.path={output}"):
        key, _, value = word.partition("=")
        # Hydra would take such a path apart.
        if key.endswith((".path", ".images", ".labels")) and not PLAIN.fullmatch(value):
            value = '"' + value.replace('"', '\\"') + '"'
        quoted.append(f"{key}={value}")
    return f"pack it: paceline pack {shlex.join(quoted)}"


def fields_word(fields: Mapping[str, str]) -> str:
    """Return the word ``input.fields={field: "name"}`` of a command line."""
    chosen = ", ".join(f'{field}: "{name}"' for field, name in fields.items())
    return f"input.fields={{{chosen}}}"


def several_splits(path: str, splits: Iterable[str], word: Callable[[str], str]) -> DataError:
    """Return the error D192 for data of several splits. ``word`` returns how to name one."""
    names = sorted(splits)
    example = next((name for name in names if name.endswith("train")), [*names, "train"][0])
    what = f"holds several splits: {listed(names)}"
    return DataError(192, path, what, f"name one, as in '{word(example)}'")


def field_name(text: str, taken: Mapping[str, str]) -> str:
    """Make a field name out of ``text`` that is not yet taken."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if name[0].isdigit():
        name = f"field_{name}"
    if name not in taken:
        return name
    return next(free for n in count(2) if (free := f"{name}_{n}") not in taken)


def is_quotable(name: str) -> bool:
    """Return whether a name can stand between quotation marks on a command line."""
    return name.isprintable() and not set('"\\$') & set(name)


def number_of(text: str) -> np.ndarray | None:
    """Return a whole number as int64, another one as float32, and None for other texts."""
    text = text.strip()
    if WHOLE.fullmatch(text):
        return np.array(int(text), np.int64)
    if LONG.fullmatch(text) or not NUMBER.fullmatch(text):
        return None
    with np.errstate(over="ignore"):
        number = np.array(float(text), np.float32)
    return None if np.isinf(number) and math.isfinite(float(text)) else number


def short_text(data: bytes) -> str | None:
    """Return a value as the short text that it is; None if it is none, empty or too long."""
    if len(data) > LONGEST_TEXT:
        return None
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if text.strip() and text.strip().isprintable():
            return text
    return None


def most_bytes(stored: int) -> int:
    """Return the most bytes that a part of ``stored`` bytes of a file may have if decompressed."""
    return max(MOST_SMALL_BYTES, MOST_EXPANSION * stored)


class ArrayHeader(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int  # bytes from the begin of the .npy file to its numbers

    @property
    def num_bytes(self) -> int:
        """The bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, data: bytes | memoryview | mmap.mmap, begin: int = 0) -> np.ndarray:
        """Return the array of the .npy file at byte ``begin`` of ``data``, without a copy."""
        flat = np.frombuffer(data, self.dtype, math.prod(self.shape), begin + self.start)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def read_npy_header(file: BinaryIO, size: int, where: str) -> ArrayHeader:
    """Read the header of a .npy file of ``size`` bytes. DataError D112 unless of plain numbers."""
    begin = file.tell()
    try:
        shape, fortran, dtype = HEADER_READERS[np.lib.format.read_magic(file)](file)
    except BROKEN as error:
        raise not_arrays(where, f"{error}") from error
    if dtype.name not in DTYPES or any(length < 0 for length in shape):
        raise not_arrays(where, f"{dtype} {shape}")
    header = ArrayHeader(shape, fortran, dtype, file.tell() - begin)
    if size - header.start != header.num_bytes:
        what = f"{dtype} {shape} wants {header.num_bytes} bytes, have {size - header.start}"
        raise not_arrays(where, what)
    return header


def not_arrays(where: str, what: str) -> DataError:
    fix = "save numbers with numpy.save or numpy.savez(path, x=..., label=...)"
    return DataError(112, where, f"not plain arrays ({what})", fix)


def array_of_npy(data: bytes, where: str) -> np.ndarray:
    """Return the array in a .npy file's bytes. DataError D112 if they are not plain numbers."""
    return native(read_npy_header(io.BytesIO(data), len(data), where).view(data))


def native(array: np.ndarray) -> np.ndarray:
    """Return the same numbers, contiguous, in this machine's byte order."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def value_of(data: bytes, name: str, where: str) -> bytes | np.ndarray:
    """Return the array of a .npy file, or the bytes of any other file."""
    return array_of_npy(data, where) if name.lower().endswith(".npy") else data


def class_pattern(pattern: str | None, group: str = "input") -> re.Pattern[str] | None:
    """Compile the option ``label_pattern``. ConfigError C160."""
    if pattern is None:
        return None
    return pattern_of_group(pattern, f"{group}.label_pattern = {pattern}", 160)


def pattern_of_group(pattern: str, where: str, number: int) -> re.Pattern[str]:
    """Compile a regular expression with one group. ConfigError ``number`` if it is not one."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        what = f"not a regular expression ({error})"
        raise ConfigError(number, where, what, "correct it") from error
    if compiled.groups != 1:
        fix = r"put brackets around what is wanted, as in '^(n\d+)_'"
        raise ConfigError(number, where, f"has {compiled.groups} groups, not one", fix)
    return compiled


def class_in(name: str, pattern: re.Pattern[str], where: str, group: str = "input") -> str:
    """Return the class that ``pattern`` finds in ``name``. DataError D162 if it finds none."""
    match = pattern.search(name)
    if match is None or not match.group(1):
        fix = f"correct {group}.label_pattern, or remove the item"
        raise DataError(162, where, f"no class in {name!r}", fix)
    return match.group(1)


def number_classes(
    names: Sequence[str], classes: Sequence[str] | None, where: str, group: str = "input"
) -> tuple[list[int], list[str]]:
    """Return each name's number in ``classes``, or else in all names by their bytes, and these."""
    known = check_classes(sorted(set(names), key=os.fsencode), classes, where, group)
    numbers = {name: number for number, name in enumerate(known)}
    return [numbers[name] for name in names], known


def label_column(
    texts: Sequence[str],
    classes: Sequence[str] | None,
    path: str,
    place: Callable[[int], str],
    group: str = "input",
    refuse: Callable[[int, DataError], None] | None = None,
) -> tuple[list[int], list[str]]:
    """Return a label for each text of a table's column (at least one), and the classes.

    If all texts are integers, they are the labels, with gaps: "10" is 10. ``classes`` then names
    them, unless the integers are names in it. Other texts are names, as in ``number_classes``.
    ``path`` is the table, and ``place`` names a row, for errors. DataError D162 for a negative or
    a huge integer, or else ``refuse`` is called with the row and this error, and the label is 0.
    """
    integers = [text.strip() for text in texts]
    is_named = classes is not None and set(texts) <= {str(name) for name in classes}
    if is_named or not all(map(INTEGER.fullmatch, integers)):
        return number_classes(texts, classes, path, group)
    for row, text in enumerate(integers):
        if text.startswith("-") or len(text) > len(str(MOST_CLASSES)) or int(text) >= MOST_CLASSES:
            what = f"the label {text[:40]} numbers no class: must be from 0 to {MOST_CLASSES - 1}"
            fix = "correct it; a plain number needs a field of another name, "
            fix += "or in a table input.columns={label: int, ...}"
            error = DataError(162, place(row), what, fix)
            if refuse is None:
                raise error
            refuse(row, error)
            integers[row] = "0"
    labels = list(map(int, integers))
    return labels, numbered_classes(max(labels), classes, path, group)


def check_classes(
    present: Iterable[str], classes: Sequence[str] | None, where: str, group: str = "input"
) -> list[str]:
    """Return ``classes``, or else ``present``. ConfigError C161 for one twice, DataError D161."""
    if classes is None:
        return list(present)
    known = [str(name) for name in classes]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        what = f"has {', '.join(twice)} twice"
        raise ConfigError(161, f"{group}.classes = {known}", what, "name each class once")
    if unknown := [name for name in present if name not in set(known)]:
        what = f"{len(unknown)} classes are not in {group}.classes: {listed(unknown)}"
        raise DataError(161, where, what, "add them, or remove their items")
    return known


def numbered_classes(
    largest: int, classes: Sequence[str] | None, where: str, group: str = "input"
) -> list[str]:
    """Return names for labels 0..``largest``: none for a negative or huge one. DataError D161."""
    if classes is None:
        return list(map(str, range(largest + 1))) if largest < MOST_CLASSES else []
    if largest >= len(classes):
        what = f"has label {largest}, but {group}.classes names {len(classes)}"
        raise DataError(161, where, what, "name all classes")
    return check_classes((), classes, where, group)


@runtime_checkable
class TakesKinds(Protocol):
    """A capability of an input: it makes its fields what ``kinds`` says."""

    kinds: Mapping[str, str]


def checked_kinds(given: Any, group: str = "input") -> dict[str, str]:
    """Return the option ``kinds``; {} for None. ConfigError C179."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given.values()) <= set(WANTED):
        what = "must map fields to ragged, text, bytes, boxes or points"
        fix = f"give '{group}.kinds={{boxes: boxes, joints: points, speech: ragged}}', say"
        raise ConfigError(179, f"{group}.kinds = {given}", what, fix)
    return {str(name): kind for name, kind in given.items()}


def check_fields(given: Any, example: str, group: str) -> None:
    """Check that the option ``fields`` maps fields to names. ConfigError C162."""
    if not isinstance(given, Mapping) or not given:
        what, fix = "must map at least one field to a name", f"give '{group}.fields={example}'"
        raise ConfigError(162, f"{group}.fields = {given}", what, fix)


def check_present(names: Iterable[str], fields: Mapping[str, Any], group: str = "input") -> None:
    """Check that there are the fields that ``kinds`` names. ConfigError C179."""
    for name in names:
        if name not in fields:
            fix = f"its fields are {', '.join(fields)}"
            raise ConfigError(179, f"{group}.kinds.{name}", "is not a field", fix)


def check_label_maps(names: Sequence[str], fields: Mapping[str, Field], group: str) -> None:
    """Check that the option ``labels`` names fields of images. ConfigError C179."""
    for name in names:
        if name not in fields or fields[name].kind != "labels":
            where, fix = f"{group}.labels = {list(names)}", f"the fields are {', '.join(fields)}"
            raise ConfigError(179, where, f"{name} is not a field of images", fix)


def text_of(data: bytes, field: str, where: str, group: str) -> str:
    """Return the text of a field of that kind. DataError D162 unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fix = f"correct it, or add '{group}.kinds={{{field}: bytes}}'"
        raise DataError(162, where, "is not UTF-8 text", fix) from error


def of_kind(value: Any, kind: str, where: str, group: str = "input") -> Any:
    """Return a field's value as its kind has it: ``str``, ``bytes`` or an array. DataError D167."""
    given = type(value).__name__
    if kind in OF_STRINGS:
        if isinstance(value, OF_STRINGS[kind]):
            return value
    else:
        array = np.asarray(value)
        if isinstance(value, np.ndarray):
            given = f"{value.dtype} {value.shape}"
        is_number = array.dtype.kind in "biufc"
        if kind == RAGGED and is_number and array.ndim:
            return array
        if kind == "boxes" and is_number and (array.shape[1:] == (4,) or array.size == 0):
            return np.ascontiguousarray(array.reshape(-1, 4), np.float32)
        if kind == "points" and is_number and array.ndim and array.shape[-1] in (2, 3):
            return np.ascontiguousarray(array, np.float32)
    what = f"is {given}, and {group}.kinds wants {WANTED.get(kind, kind)}"
    raise DataError(167, where, what, f"correct the record, or {group}.kinds")


def field_of_kind(value: Any, kind: str) -> Field:
    """Return the field of a value that ``of_kind`` returned. Its number of rows may differ."""
    if kind in OF_STRINGS:
        return Field("uint8", (None,), kind=kind)
    return Field(value.dtype.name, (None, *value.shape[1:]), kind="" if kind == RAGGED else kind)
