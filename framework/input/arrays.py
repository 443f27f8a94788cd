"""Named arrays: a .npz file, one .npy file, or the datasets of an HDF5 file. What is not compressed is read through a memory map, however large."""

import mmap
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest
from framework.data.classes import listed
from framework.errors import ConfigError, DataError
from framework.input.array_values import array_of_npy, native, not_arrays, read_npy_header
from framework.input.label import numbered_classes
from framework.store.hdf5_store import SIGNATURE, foreign_datasets

BLOCK = 1 << 20  # bytes of a .npz that are compared with their CRC32 at a time


@final
class ArraysInput:
    """Every array of ``path`` is a field, its first dimension the records. A .npy file is one field, named by the file.

    An integer field named ``label`` also gives the classes 0..max, or their names in ``classes``. Keys are the records' numbers.
    ``fields``: field -> the array it is, for those that are wanted; null: all, an HDF5 dataset under the last part of its name.
    """

    def __init__(
        self, path: str, classes: Sequence[str] | None, fields: Mapping[str, str] | None = None
    ) -> None:
        if fields is not None and (not hasattr(fields, "items") or not fields):
            raise ConfigError(
                162,
                f"input.fields = {fields}",
                "names no array",
                "give input.fields={image: x, label: y}",
            )
        self.path, self.classes = path, classes
        self.fields = (
            None if fields is None else {str(field): str(name) for field, name in fields.items()}
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ArraysInput, (
            self.path,
            self.classes,
            self.fields,
        )  # another process maps the file itself

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """Field -> what has its shape and dtype, and gives its rows."""
        arrays = self._all()
        if self.fields is None:
            return arrays
        if missing := [name for name in self.fields.values() if name not in arrays]:
            what = f"has no array {', '.join(missing)}, but {listed(list(arrays))}"
            raise DataError(112, self.path, what, "correct input.fields")
        return {field: arrays[name] for field, name in self.fields.items()}

    def _all(self) -> dict[str, Any]:
        if not Path(self.path).is_file():
            raise DataError(101, self.path, "no such file", "give a .npz, .npy or HDF5 file")
        try:
            with open(self.path, "rb") as file:
                if file.read(len(SIGNATURE)) == SIGNATURE:
                    return self._of_hdf5()
                file.seek(0)
                arrays = (
                    _of_npz(file, self.path) if file.read(2) == b"PK" else _of_npy(file, self.path)
                )
        except (
            ValueError,
            OSError,
            EOFError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
            MemoryError,
            struct.error,
        ) as error:
            raise not_arrays(self.path, str(error)) from error
        flat = [name for name, array in arrays.items() if array.ndim == 0]
        if flat or not arrays:
            raise not_arrays(self.path, f"{flat or 'nothing'} cannot be records")
        return arrays

    def _of_hdf5(self) -> dict[str, Any]:
        datasets = foreign_datasets(self.path)
        if not datasets:
            raise not_arrays(self.path, "no dataset of numbers")
        if self.fields is not None:
            return dict(datasets)
        named = {name.rpartition("/")[2]: rows for name, rows in datasets.items()}
        if len(named) < len(datasets):
            what = f"has several datasets of one name: {listed(list(datasets))}"
            raise DataError(
                163, self.path, what, "choose with input.fields={image: GROUP/DATASET, ...}"
            )
        return dict(named)

    @cached_property
    def manifest(self) -> Manifest:
        lengths = {name: len(array) for name, array in self.arrays.items()}
        num_records = check_same_length(
            self.path, lengths, "choose arrays of one length: input.fields={image: x, label: y}"
        )
        fields = {
            name: Field(array.dtype.name, array.shape[1:]) for name, array in self.arrays.items()
        }
        return Manifest(num_records, fields, self._classes(), source=f"arrays {self.path}")

    def _classes(self) -> list[str]:
        label = self.arrays.get("label")
        if label is None or label.ndim != 1 or label.dtype.kind not in "iu":
            return []
        labels = label[:]
        return (
            [] if labels.min() < 0 else numbered_classes(int(labels.max()), self.classes, self.path)
        )

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: native(array[start:stop]) for name, array in self.arrays.items()}
        return Chunk(records, [str(number) for number in range(start, stop)])

    def name(self, index: int) -> str:
        return f"{self.path}: record {index}"


def check_same_length(
    path: str, lengths: dict[str, int], fix: str = "give arrays of one length, at least 1"
) -> int:
    """The length all arrays share. DataError D111 where they differ or are empty."""
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(
            111,
            path,
            f"its arrays have {lengths} records",
            "give arrays of one length, at least 1, or choose some with input.fields",
        )
    return next(iter(lengths.values()))


def _of_npy(file: BinaryIO, path: str) -> dict[str, np.ndarray]:
    size = file.seek(0, 2)
    return {Path(path).stem: _mapped(file, 0, size, path)}


def _mapped(file: BinaryIO, begin: int, size: int, where: str) -> np.ndarray:
    """The array of the .npy file at ``begin``, ``size`` bytes long, over a memory map."""
    file.seek(begin)
    header = read_npy_header(file, where)
    if header.start + header.num_bytes != size:
        what = f"truncated: {header.dtype} {header.shape} wants {header.num_bytes} bytes, have {size - header.start}"
        raise not_arrays(where, what)
    count = header.num_bytes // header.dtype.itemsize
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(whole, header.dtype, count, begin + header.start)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _of_npz(file: BinaryIO, path: str) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if others := [member.filename for member in archive.infolist() if member not in members]:
            raise not_arrays(path, f"holds {', '.join(others[:3])}")
        return {
            member.filename.removesuffix(".npy"): _of_member(archive, member, file, path)
            for member in members
        }


def _of_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: BinaryIO, path: str
) -> np.ndarray:
    """A stored member by memory map, after its CRC32 is compared, block by block; a compressed one in memory."""
    where = f"{path}: {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED:
        with archive.open(member) as inside:
            header = read_npy_header(inside, where)  # pyright: ignore[reportArgumentType]  # an archive's member reads like a file
        if header.start + header.num_bytes != member.file_size:
            raise not_arrays(where, f"{header.dtype} {header.shape} wants {header.num_bytes} bytes")
        return array_of_npy(archive.read(member), where)
    with archive.open(member) as inside:
        while inside.read(BLOCK):
            pass
    file.seek(member.header_offset + 26)
    name_size, extra_size = struct.unpack("<HH", file.read(4))
    return _mapped(
        file, member.header_offset + 30 + name_size + extra_size, member.file_size, where
    )
