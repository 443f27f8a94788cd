"""Other programs' files: what an LMDB file holds, and the command that packs a file."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from framework.errors import DataError
from framework.image.header import BadImage, read_header
from framework.store.lmdb_btree import any_values

NPY = b"\x93NUMPY"
IN_FOLDER = "data.mdb"  # the file of an LMDB environment that is a folder
MOST_FIELDS = 16  # of a suggested command; keys of more kinds are names
LONGEST_TEXT = 1000  # bytes of a text that may be a label
LABEL = "label"  # the field whose texts are names of classes
WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"\d+", re.ASCII)
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
OTHER_WAY = "read it with input=function: 'paceline pack input=function --help'"


def pack_command(kind: str, path: str, fields: Mapping[str, str]) -> str:
    """Return the command that packs a foreign file, as one types it in a shell.

    Args:
        kind: the input: arrays or lmdb.
        path: the file.
        fields: what each field is made of, as ``input.fields`` has it.

    """
    chosen = ", ".join(f'{field}: "{name}"' for field, name in fields.items())
    given = path if PLAIN.fullmatch(path) else '"' + path.replace('"', '\\"') + '"'
    output = free_name(path.rstrip("/"))
    made = output if PLAIN.fullmatch(output) else '"' + output.replace('"', '\\"') + '"'
    words = [f"input={kind}", f"input.path={given}", f"input.fields={{{chosen}}}"]
    return f"pack it: paceline pack {shlex.join([*words, f'output.path={made}'])}"


def free_name(path: str) -> str:
    """Return a name beside ``path`` that no file has."""
    stem, number = str(Path(path).with_suffix("")), 0
    name = f"{stem}.packed.h5"
    while os.path.exists(name):
        number += 1
        name = f"{stem}.packed{number}.h5"
    return name


def field_name(text: str, taken: Mapping[str, str]) -> str:
    """Return a field's name made of ``text`` that is not ``taken``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = name if not name[0].isdigit() else f"field_{name}"
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def is_quotable(name: str) -> bool:
    """Whether a name can stand between quotation marks on a command line."""
    return name.isprintable() and not set('"\\$') & set(name)


@final
class ForeignLMDB:
    """The values of an LMDB file, or of a folder with a ``data.mdb``, under any keys. Picklable."""

    def __init__(self, path: str) -> None:
        self.path = os.path.join(path, IN_FOLDER) if os.path.isdir(path) else path
        keys, self.offsets, self.sizes = any_values(self.path)
        self.keys = [key.decode("utf-8", "surrogateescape") for key in keys]

    def read(self, number: int) -> bytes:
        """Value ``number``, in the order of the keys. DataError D101."""
        try:
            with open(self.path, "rb") as file:
                file.seek(int(self.offsets[number]))
                return file.read(int(self.sizes[number]))
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise DataError(101, self.path, what, "give read permission") from error


class Pattern(NamedTuple):
    """The keys of a field: ``%d`` and ``%09d`` are numbers, ``%s`` any text, ``%%`` a percent sign."""

    text: str

    @property
    def expression(self) -> re.Pattern[str]:
        """Its one group is what the keys of a record share."""
        parts = re.split(r"(%(?:0\d+)?d|%s|%%)", self.text)
        return re.compile("".join(map(_expression, parts)), re.DOTALL | re.ASCII)


def _expression(part: str) -> str:
    if part == "%s":
        return "(.+)"
    if part == "%d":
        return r"(\d+)"
    if re.fullmatch(r"%0\d+d", part):
        return rf"(\d{{{int(part[2:-1])},}})"
    return re.escape("%" if part == "%%" else part)


def lmdb_advice(path: str) -> str:
    """Return what to do with another program's LMDB file: the command that packs it, if one can.

    Raises:
        DataError: D102 if it cannot be read.

    """
    file = ForeignLMDB(path)
    fields: dict[str, str] = {}
    for pattern, first in _patterns(file.keys).items():
        data = file.read(first)
        if is_readable(data) and is_quotable(pattern):
            named = re.sub(r"%(?:0\d+)?d|%s", "", pattern).replace("%%", "")
            name = field_name(named or ("image" if _is_image(data) else "value"), fields)
            if is_class_name(data):
                name = LABEL
            if name not in fields:  # there can be one label
                fields[name] = pattern
    return pack_command("lmdb", path, fields) if fields else OTHER_WAY


def _patterns(keys: list[str]) -> dict[str, int]:
    """Patterns of the keys that there are most of, and the place of the first key of each."""
    widths: dict[tuple[str, str], set[int]] = {}
    first: dict[tuple[str, str], int] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for place, key in enumerate(keys):
        runs = list(NUMBER.finditer(key))
        if not runs:
            continue
        around = key[: runs[-1].start()], key[runs[-1].end() :]
        widths.setdefault(around, set()).add(len(runs[-1].group()))
        first.setdefault(around, place)
        counts[around] += 1
    most = max(counts.values(), default=0)
    chosen = [around for around in first if counts[around] == most]
    if not chosen or len(chosen) > MOST_FIELDS:
        return {"%s": 0} if keys else {}
    found: dict[str, int] = {}
    for around in chosen:
        number = f"%0{min(widths[around])}d" if len(widths[around]) == 1 else "%d"
        found[number.join(part.replace("%", "%%") for part in around)] = first[around]
    return found


def is_readable(data: bytes) -> bool:
    """Whether ``input=lmdb`` can read a value: an image or .npy file, a number, or a short text."""
    return _is_image(data) or data.startswith(NPY) or text_of(data) is not None


def _is_image(data: bytes) -> bool:
    try:
        read_header(data)
    except (BadImage, ValueError):
        return False
    return True


def is_class_name(data: bytes) -> bool:
    """Whether a value is a text but no number: then it can only be a label."""
    text = None if _is_image(data) or data.startswith(NPY) else text_of(data)
    return text is not None and number_of(text) is None


def number_of(text: str) -> np.ndarray | None:
    """A whole number as int64, any other as float32; None for what is none."""
    try:
        if WHOLE.fullmatch(text):
            return np.array(int(text), np.int64)
        return np.array(float(text), np.float32)
    except ValueError:
        return None


def text_of(data: bytes) -> str | None:
    """A value as a short text; None if it is none."""
    try:
        text = data.decode() if len(data) <= LONGEST_TEXT else ""
    except UnicodeDecodeError:
        return None
    return text.strip() if text.strip() and text.strip().isprintable() else None
