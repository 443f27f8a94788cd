"""Files of other programs: the values of an LMDB file, and the command that packs a file."""

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

import numpy as np

from framework.image.header import BadImage, read_header
from framework.store.identity import unreadable
from framework.store.lmdb_btree import any_values

NPY = b"\x93NUMPY"
IN_FOLDER = "data.mdb"  # the file in an LMDB environment that is a folder
MOST_FIELDS = 16  # in a suggested command; more patterns than that mean that keys are names
LONGEST_TEXT = 1000  # bytes of a text that may be a label
LABEL = "label"  # the field whose texts name classes
WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.ASCII | re.DOTALL)
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
OTHER_WAY = "read it with input=function: 'paceline pack input=function --help'"


def pack_command(kind: str, path: str, fields: Mapping[str, str]) -> str:
    """Return the shell command that packs another program's file with the input ``kind``.

    ``fields`` is the value of ``input.fields``: a dataset or a pattern of keys per field.
    """
    chosen = ", ".join(f'{field}: "{name}"' for field, name in fields.items())
    output = free_name(path.rstrip("/"))
    words = [f"input={kind}", f"input.path={path}", f"input.fields={{{chosen}}}"]
    return f"pack it: paceline pack {shell_words(*words, f'output.path={output}')}"


def shell_words(*words: str) -> str:
    """Return words ``key=value`` for a shell. A path that Hydra would take apart is quoted."""
    return shlex.join(_quoted_word(word) for word in words)


def _quoted_word(word: str) -> str:
    key, _, value = word.partition("=")
    if not key.endswith(".path"):
        return word
    return f"{key}={_quoted(value)}"


def free_name(path: str) -> str:
    """Return an unused name beside ``path`` for its packed store."""
    if Path(path).name in ("", ".."):  # the working directory, or a folder above it
        path = os.path.abspath(path)
    stem = str(Path(path).with_suffix(""))
    number = 0
    name = f"{stem}.packed.h5"
    while os.path.exists(name):
        number += 1
        name = f"{stem}.packed{number}.h5"
    return name


def field_name(text: str, taken: Mapping[str, str]) -> str:
    """Make a field name out of ``text`` that is not yet taken."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if name[0].isdigit():
        name = f"field_{name}"
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    return free


def is_quotable(name: str) -> bool:
    """Return whether a name can stand between quotation marks on a command line."""
    return name.isprintable() and not set('"\\$') & set(name)


@final
class ForeignLMDB:
    """The values of any LMDB file, or of a folder that holds ``data.mdb``. Picklable.

    Raises:
        DataError: D101 if the file is missing; D102 if it is damaged or has named databases.
    """

    def __init__(self, path: str) -> None:
        if os.path.isdir(path):
            path = os.path.join(path, IN_FOLDER)
        self.path = path
        keys, self.offsets, self.sizes = any_values(path)
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
    for part in re.split(r"(%(?:0\d+)?d|%s|%%)", pattern):
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

    Raises:
        DataError: D101 or D102 if the file cannot be read.
    """
    file = ForeignLMDB(path)
    fields: dict[str, str] = {}
    for pattern, first in _patterns(file.keys).items():
        usual = _kind_of(file.read(first))
        if usual is None or not is_quotable(pattern):
            continue
        name = LABEL
        if usual != LABEL:
            named = re.sub(r"%(?:0\d+)?d|%s", "", pattern).replace("%%", "")
            name = field_name(named or usual, fields)
        fields.setdefault(name, pattern)  # only one field can be the label
    if not fields:
        return OTHER_WAY
    return pack_command("lmdb", path, fields)


def number_of(text: str) -> np.ndarray | None:
    """Return a whole number as int64, any other number as float32, and None for other texts."""
    try:
        if WHOLE.fullmatch(text):
            return np.array(int(text), np.int64)
        return np.array(float(text), np.float32)
    except ValueError:
        return None


def text_of(data: bytes) -> str | None:
    """Return a value as a short text; None if it is not a text, empty or too long."""
    if len(data) > LONGEST_TEXT:
        return None
    with suppress(UnicodeDecodeError):
        text = data.decode().strip()
        if text and text.isprintable():
            return text
    return None


def _quoted(path: str) -> str:
    if PLAIN.fullmatch(path):
        return path
    return '"' + path.replace('"', '\\"') + '"'


def _patterns(keys: list[str]) -> dict[str, int]:
    """Return the most frequent patterns of the keys, and the place of the first key of each.

    A pattern replaces the last number in a key.
    """
    widths: dict[tuple[str, str], list[int]] = {}  # of all numbers between two texts
    first: dict[tuple[str, str], int] = {}
    for place, key in enumerate(keys):
        if match := LAST_NUMBER.fullmatch(key):
            before, number, after = match.groups()
            widths.setdefault((before, after), []).append(len(number))
            first.setdefault((before, after), place)
    most = max(map(len, widths.values()), default=0)
    chosen = [around for around in first if len(widths[around]) == most]
    if not chosen or len(chosen) > MOST_FIELDS:
        return {"%s": 0} if keys else {}
    patterns: dict[str, int] = {}
    for around in chosen:
        number = "%d"
        if len(set(widths[around])) == 1:
            number = f"%0{widths[around][0]}d"
        patterns[number.join(part.replace("%", "%%") for part in around)] = first[around]
    return patterns


def _kind_of(data: bytes) -> str | None:
    """Return ``image``, ``label`` (a text), ``value`` (an array or a number), or None."""
    with suppress(BadImage, ValueError):
        read_header(data)
        return "image"
    if data.startswith(NPY):
        return "value"
    text = text_of(data)
    if text is None:
        return None
    return LABEL if number_of(text) is None else "value"
