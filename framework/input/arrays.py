"""Named arrays: a .npz or .npy file.

Arrays are read through a memory map, however large they are. Compressed ones are held in memory.
"""

import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from framework.errors import DataError, listed
from framework.input.rows import ColumnInput, text_by_field
from framework.store.foreign import SIGNATURE, array_of_npy, most_bytes, not_arrays, read_npy_header

BLOCK = 1 << 20  # bytes of a .npz that are read at a time to compare them with their CRC32
UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, MemoryError, struct.error, zlib.error)


@final
class ArraysInput(ColumnInput):
    """Fields from arrays.

    A .npy file is one field with the file's name. ``conf/input/arrays.yaml`` describes the options.
    """

    kind = "arrays"

    def __init__(
        self, path: str, classes: Sequence[str] | None, fields: Mapping[str, str] | None = None
    ) -> None:
        self.path, self.classes, self.fields = path, classes, fields
        if fields is not None:
            self.fields = text_by_field("fields", fields, "{image: x, label: y}")

    @cached_property
    def arrays(self) -> dict[str, Any]:
        if not Path(self.path).is_file():
            raise DataError(101, self.path, "no such file", "give a .npz or .npy file")
        try:
            with open(self.path, "rb") as file:
                head = file.read(len(SIGNATURE))
                if head == SIGNATURE:
                    raise DataError(112, self.path, "is an HDF5 file", "set input=hdf5")
                if head.startswith(b"PK"):
                    arrays = self._members(file)
                else:
                    names, size = self._chosen([Path(self.path).stem]), file.seek(0, 2)
                    arrays = {name: _MappedArray(file, 0, size, self.path) for name in names}
        except (*UNREADABLE, zipfile.BadZipFile) as error:
            raise not_arrays(self.path, str(error)) from error
        scalars = [name for name, array in arrays.items() if array.ndim == 0]
        if scalars or not arrays:
            raise not_arrays(self.path, f"{scalars or 'nothing'} cannot be records")
        if self.fields is None:
            return arrays
        return {field: arrays[name] for field, name in self.fields.items()}

    def _chosen(self, names: Sequence[str]) -> list[str]:
        if self.fields is None:
            return list(names)
        if missing := [name for name in self.fields.values() if name not in names]:
            what = f"has no array {', '.join(missing)}, but {listed(names)}"
            raise DataError(112, self.path, what, "correct input.fields")
        return list(dict.fromkeys(self.fields.values()))

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path,)

    def _members(self, file: BinaryIO) -> dict[str, Any]:
        with zipfile.ZipFile(file) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            chosen = {name: members[name] for name in self._chosen(list(members))}
            compressed = [m for m in chosen.values() if m.compress_type != zipfile.ZIP_STORED]
            declared, size = sum(m.file_size for m in compressed), os.path.getsize(self.path)
            if declared > most_bytes(size):  # members may overlap
                what = f"declares {declared:,} bytes, more than a file of {size:,} may expand to"
                raise DataError(112, self.path, what, "save it with numpy.savez if you trust it")
            arrays: dict[str, Any] = {}
            for name, member in chosen.items():
                where = f"{self.path}: {member.filename}"
                if member in compressed:
                    arrays[name] = array_of_npy(archive.read(member), where)
                    continue
                with archive.open(member) as inside:
                    while inside.read(BLOCK):  # the last read compares the CRC32
                        pass
                file.seek(member.header_offset + 26)
                begin = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
                arrays[name] = _MappedArray(file, begin, member.file_size, where)
            return arrays


@final
class _MappedArray:
    """The array of a .npy file of ``size`` bytes at ``begin`` of a file, over a memory map.

    A slice of it is a copy, and its pages leave this process's memory.
    """

    def __init__(self, file: BinaryIO, begin: int, size: int, where: str) -> None:
        file.seek(begin)
        header = read_npy_header(file, size, where)
        self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._array = header.view(self._data, begin)
        self.shape, self.dtype, self.ndim = header.shape, header.dtype, len(header.shape)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = np.array(self._array[rows])
        self._data.madvise(mmap.MADV_DONTNEED)
        return part
