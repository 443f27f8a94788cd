"""Formats of files by their content or name, and which choice reads each of them."""

import os
import zlib
from contextlib import suppress
from typing import NamedTuple

from framework.errors import DataError
from framework.store.foreign import NPY, free_name, shell_words
from framework.store.identity import read_head
from framework.store.lmdb_btree import META_MAGIC

SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of an HDF5 file
HEAD_BYTES = 20
TAR_MAGIC = b"ustar"  # at byte 257
TAR_MAGIC_AT = 257
COLUMNS = (".parquet", ".arrow")
TABLES = (".csv", ".tsv", ".tab")
FEATURES = "input.features={image: image/encoded, label: image/class/label}"  # the usual ones
GZIP = b"\x1f\x8b"
GZIP_BITS = 31  # zlib's number for data with gzip's header
IDX = b"\0\0\x08"  # of an IDX file of unsigned bytes; the number of dimensions follows


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
        names: list[str] = []
        with suppress(OSError):  # the reader of the folder says why
            names = [name.lower() for name in os.listdir(path)]
        if any(name.endswith(".tar") for name in names):
            return TARS
        return PARQUETS if any(name.endswith(COLUMNS) for name in names) else None
    if not os.path.isfile(path):
        return None
    head = read_head(path, TAR_MAGIC_AT + len(TAR_MAGIC))
    kind = file_kind(head)
    if kind is not None:
        return HDF5 if kind == "hdf5" else LMDB
    if head[TAR_MAGIC_AT:] == TAR_MAGIC:
        return TAR
    is_arrow = head.startswith(b"\xff\xff\xff\xff") and path.lower().endswith(".arrow")
    return PARQUET if is_arrow or head.startswith((b"PAR1", b"ARROW1")) else None


def refuse_other(path: str, choice: str) -> None:
    """Raise DataError D103, which names the right choice, for a format that ``choice`` cannot read.

    A path without a format that is known passes.
    """
    present = format_of(path)
    if present is None and os.path.isfile(path):
        _refuse_input(path)
    if present is None or present.choice == choice:
        return
    if choice in ("hdf5", "lmdb") and present not in PACKED:
        command = _pack_command(path, f"input={present.choice}", f"input.path={path}")
        what = f"is {present.name}, but not a Paceline store"
        fix = f"read it as it lies with data={present.choice}, or pack it: {command}"
        raise DataError(103, path, what, fix)
    what = f"is {present.name}, which data={choice} does not read"
    raise DataError(103, path, what, f"choose data={present.choice}")


def refuse_unpacked(path: str) -> None:
    """Raise DataError D103 for files that another choice reads where they lie."""
    refuse_other(path, "hdf5")


def _pack_command(path: str, *words: str) -> str:
    output = f"output.path={free_name(path.rstrip('/'))}"
    return f"paceline pack {shell_words(*words, output)}"


def _refuse_input(path: str) -> None:
    """Raise DataError D103 for a file that only packing reads, with the command that packs it."""
    head = read_head(path, TAR_MAGIC_AT)
    name = os.path.basename(path).lower()
    words = [f"input.path={path}"]
    if head.startswith(NPY) or (name.endswith(".npz") and head.startswith(b"PK")):
        what, words = "a .npy or .npz file", ["input=arrays", *words]
    elif name.endswith((*TABLES, ".scp")):
        what, words = "a table", ["input=list", *words]
    elif ".tfrecord" in name:
        what, words = "a TFRecord file", ["input=tfrecord", *words, FEATURES]
    else:
        if head.startswith(GZIP):
            with suppress(zlib.error):
                head = zlib.decompressobj(GZIP_BITS).decompress(head, HEAD_BYTES)
        if not head.startswith(IDX) or not head[len(IDX) :]:
            return
        what = "an IDX file"
        images = path.replace("labels-idx1", "images-idx3")
        labels = path.replace("images-idx3", "labels-idx1")
        if images == labels and head[len(IDX)] > 1:  # dimensions: a file of images
            labels = "LABELS"
        elif images == labels:
            images = "IMAGES"
        words = ["input=idx", f"input.images={images}", f"input.labels={labels}"]
    what = f"is {what}, but not a Paceline store"
    command = _pack_command(path, *words)
    raise DataError(103, path, what, f"pack it: {command}")
