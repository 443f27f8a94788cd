"""Formats of files by their content, and which choice reads each of them."""

import os
from typing import NamedTuple

from framework.errors import DataError
from framework.store.foreign import free_name, shell_words
from framework.store.identity import read_head
from framework.store.lmdb_btree import META_MAGIC

SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of an HDF5 file
HEAD_BYTES = 20
TAR_MAGIC = b"ustar"  # at byte 257
TAR_MAGIC_AT = 257
COLUMNS = (".parquet", ".arrow")


class Format(NamedTuple):
    """A format: its name for errors, and the choice of ``data=`` that reads it."""

    name: str
    choice: str


HDF5 = Format("an HDF5 file", "hdf5")
LMDB = Format("an LMDB file", "lmdb")
TAR = Format("a .tar archive", "tar")
TARS = Format("a folder of .tar archives", "tar")
PARQUET = Format("a Parquet or Arrow file", "parquet")
PARQUETS = Format("a folder of Parquet or Arrow files", "parquet")
PACKED = (HDF5, LMDB)


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
        return _format_of_folder(path)
    return _format_of_file(path) if os.path.isfile(path) else None


def _format_of_folder(path: str) -> Format | None:
    try:
        names = [name.lower() for name in os.listdir(path)]
    except OSError:
        return None  # the reader of the folder says why
    if any(name.endswith(".tar") for name in names):
        return TARS
    if any(name.endswith(COLUMNS) for name in names):
        return PARQUETS
    return None


def _format_of_file(path: str) -> Format | None:
    head = read_head(path, TAR_MAGIC_AT + len(TAR_MAGIC))
    kind = file_kind(head)
    if kind is not None:
        return HDF5 if kind == "hdf5" else LMDB
    if head[TAR_MAGIC_AT:] == TAR_MAGIC:
        return TAR
    is_arrow = head.startswith(b"\xff\xff\xff\xff") and path.lower().endswith(".arrow")
    if is_arrow or head.startswith((b"PAR1", b"ARROW1")):
        return PARQUET
    return None


def refuse_other(path: str, choice: str) -> None:
    """Raise DataError D103, which names the right choice, for a format that ``choice`` cannot read.

    A path without a format that is known passes.
    """
    present = format_of(path)
    if present is None or present.choice == choice:
        return
    if choice in ("hdf5", "lmdb") and present not in PACKED:
        raise _not_packed(path, present)
    what = f"is {present.name}, which data={choice} does not read"
    raise DataError(103, path, what, f"choose data={present.choice}")


def refuse_unpacked(path: str) -> None:
    """Raise DataError D103 for files that another choice reads where they lie."""
    refuse_other(path, "hdf5")


def _not_packed(path: str, present: Format) -> DataError:
    words = shell_words(
        f"input={present.choice}",
        f"input.path={path}",
        f"output.path={free_name(path.rstrip('/'))}",
    )
    what = f"is {present.name}, but not a Paceline store"
    fix = f"read it as it lies with data={present.choice}, or pack it: paceline pack {words}"
    return DataError(103, path, what, fix)
