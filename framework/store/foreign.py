"""Files of other programs: their formats, which choice reads them, and commands that pack them."""

import math
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from framework.contracts.records import LABEL
from framework.errors import DataError, listed
from framework.media.header import is_image
from framework.store.files import read_head, unreadable
from framework.store.lmdb_btree import META_MAGIC, values_of

NPY = b"\x93NUMPY"
SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of an HDF5 file
HEAD_BYTES = 20
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
LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
PLACEHOLDER = r"%(?:0\d+)?d|%s|%%"  # in a pattern of keys
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
USUAL_SPLITS = ("train", "validation", "valid", "val", "dev", "test")
OTHER_WAY = "read it with input=function: 'paceline pack input=function --help'"


class Format(NamedTuple):
    """A format: its name for errors, and the choice of ``data=`` that reads it."""

    name: str
    choice: str


def file_kind(head: bytes) -> str | None:
    """Return ``hdf5`` or ``lmdb`` by the first ``HEAD_BYTES`` of a file, or None."""
    if head[16:HEAD_BYTES] == META_MAGIC.to_bytes(4, "little"):
        return "lmdb"
    return "hdf5" if head.startswith(SIGNATURE) else None


def format_of(path: str) -> Format | None:
    """Return the format of a file or a folder of files; None if it is none of these.

    DataError D101 if a file cannot be read.
    """
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
    kind = file_kind(head)
    if kind is not None:
        return Format(f"an {kind.upper()} file", kind)
    if head[TAR_MAGIC_AT:] == TAR_MAGIC:
        return Format("a .tar archive", "tar")
    is_stream = head.startswith(b"\xff\xff\xff\xff") and path.lower().endswith(".arrow")
    if is_stream or head.startswith((b"PAR1", b"ARROW1")):
        return Format("a Parquet or Arrow file", "parquet")
    return None


def refuse_other(path: str, choice: str) -> None:
    """Raise DataError D103, which names the right choice, for a format that ``choice`` cannot read.

    A path without a format that is known passes.
    """
    present = format_of(path)
    if present is None and os.path.isfile(path):
        _refuse_input(path)
    if present is None or present.choice == choice:
        return
    if choice in ("hdf5", "lmdb") and present.choice not in ("hdf5", "lmdb"):
        command = pack_command(path, f"input={present.choice}", f"input.path={path}")
        what = f"is {present.name}, but not a Paceline store"
        fix = f"read it as it lies with data={present.choice}, or {command}"
        raise DataError(103, path, what, fix)
    what = f"is {present.name}, which data={choice} does not read"
    raise DataError(103, path, what, f"choose data={present.choice}")


def _refuse_input(path: str) -> None:
    """Raise DataError D103 for a file that only packing reads, with the command that packs it."""
    head = read_head(path, len(NPY))
    name = os.path.basename(path).lower()
    words = [f"input.path={path}"]
    if head.startswith(NPY) or name.endswith(".npz"):
        what, words = "a .npy or .npz file", ["input=arrays", *words]
    elif name.endswith(TABLES):
        what, words = "a table", ["input=list", *words]
    elif ".tfrecord" in name:
        what, words = "a TFRecord file", ["input=tfrecord", *words, FEATURES]
    elif head.startswith(IDX) or "-idx" in name:
        images = path.replace("labels-idx1", "images-idx3")
        labels = path.replace("images-idx3", "labels-idx1")
        what, words = "an IDX file", [f"input.images={images}", f"input.labels={labels}"]
        words = ["input=idx", *words]
    else:
        return
    raise DataError(103, path, f"is {what}, but not a Paceline store", pack_command(path, *words))


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


def example_split(splits: Sequence[str]) -> str:
    """Return the split that an error takes as an example: that for training, if there is one."""
    return next((split for split in splits if split.endswith("train")), [*splits, "train"][0])


def several_splits(path: str, splits: Sequence[str], word: str) -> DataError:
    """Return the error D192 for data of several splits. ``word`` names one of them."""
    what = f"holds several splits: {listed(splits)}"
    return DataError(192, path, what, f"name one, as in '{word}'")


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


@final
class ForeignLMDB:
    """The values of any LMDB file, or of a folder that holds ``data.mdb``. Picklable.

    DataError D101 if the file is missing, D102 if it is damaged or has named databases.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.join(path, IN_FOLDER) if os.path.isdir(path) else path
        _, keys, self.offsets, self.sizes = values_of(self.path)
        self.keys = [key.decode("utf-8", "surrogateescape") for key in keys]

    def read(self, number: int) -> bytes:
        """Return a value by its place in the order of the keys. DataError D101."""
        try:
            with open(self.path, "rb") as file:
                file.seek(int(self.offsets[number]))
                return file.read(int(self.sizes[number]))
        except OSError as error:
            raise unreadable(self.path, error) from error


def key_expression(pattern: str) -> re.Pattern[str]:
    """Return an expression whose only group matches what the keys of a record share.

    In a pattern, ``%d`` and ``%09d`` are numbers, ``%s`` any text, ``%%`` a percent sign.
    """
    parts: list[str] = []
    for part in re.split(f"({PLACEHOLDER})", pattern):
        if part == "%s":
            parts.append("(.+)")
        elif part == "%d":
            parts.append(r"(\d+)")
        elif re.fullmatch(r"%0\d+d", part):
            parts.append(rf"(\d{{{int(part[2:-1])},}})")
        else:
            parts.append(re.escape(part.replace("%%", "%")))
    return re.compile("".join(parts), re.DOTALL | re.ASCII)


def lmdb_advice(path: str) -> str:
    """Suggest how to pack another program's LMDB file: by a command, or by ``input=function``.

    The fields are the most frequent patterns of the keys, each with the last number replaced.
    DataError D101 or D102 if the file cannot be read.
    """
    file = ForeignLMDB(path)
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by texts around a number
    widths: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for place, key in enumerate(file.keys):
        if match := LAST_NUMBER.fullmatch(key):
            before, number, after = match.groups()
            places[before, after].append(place)
            widths[before, after].add(len(number))
    most = max(map(len, places.values()), default=0)
    fields: dict[str, str] = {}
    for (before, after), own in places.items():
        first = file.read(own[0])
        is_value = is_image(first) or first.startswith(NPY) or text_of(first) is not None
        if len(own) == most and is_value and is_quotable(before + after):
            width = f"0{min(widths[before, after])}" if len(widths[before, after]) == 1 else ""
            name = before + after or ("image" if is_image(first) else LABEL)
            parts = (text.replace("%", "%%") for text in (before, after))
            fields[field_name(name, fields)] = f"%{width}d".join(parts)
    if not 0 < len(fields) <= MOST_FIELDS:
        return OTHER_WAY
    return pack_command(path, "input=lmdb", f"input.path={path}", fields_word(fields))


def number_of(text: str) -> np.ndarray | None:
    """Return a whole number as int64, any other number as float32, and None for other texts.

    Also None for a whole number of more than 18 digits, and for one that float32 cannot hold.
    """
    text = text.strip()
    if WHOLE.fullmatch(text):
        return np.array(int(text), np.int64)
    if LONG.fullmatch(text) or not NUMBER.fullmatch(text):
        return None
    with np.errstate(over="ignore"):
        number = np.array(float(text), np.float32)
    return None if np.isinf(number) and math.isfinite(float(text)) else number


def text_of(data: bytes) -> str | None:
    """Return a value as the short text that it is; None if it is not a text, empty or too long."""
    if len(data) > LONGEST_TEXT:
        return None
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if text.strip() and text.strip().isprintable():
            return text
    return None
