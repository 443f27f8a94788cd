"""Named arrays: a .npz file, or one .npy file."""

import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from framework.contracts import Field, Manifest, Records
from framework.errors import DataError
from framework.pack.run import check_same_length


@final
class ArraysInput:
    """Every array of ``path`` is a field, its first dimension the records. A .npy file is one field, named by the file.

    An integer field named ``label`` also gives the classes 0..max.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        if not Path(self.path).is_file():
            raise DataError(101, self.path, "no such file", "give a .npz or .npy file")
        try:
            arrays = _load(self.path)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(
                112, self.path, f"not plain arrays ({error})", "save numbers with numpy.savez(path, x=..., label=...)"
            ) from error
        flat = [name for name, array in arrays.items() if array.ndim == 0 or array.dtype.kind not in "biufc"]
        if flat or not arrays:
            raise DataError(
                112, self.path, f"{flat or 'nothing'} cannot be records", "give arrays of numbers, first dimension the records"
            )
        return arrays

    @cached_property
    def manifest(self) -> Manifest:
        num_records = check_same_length(self.path, {name: len(array) for name, array in self.arrays.items()})
        fields = {name: Field(array.dtype.name, array.shape[1:]) for name, array in self.arrays.items()}
        return Manifest(num_records, fields, self._classes(), source=f"arrays {self.path}")

    def _classes(self) -> list[str]:
        label = self.arrays.get("label")
        if label is None or label.ndim != 1 or label.dtype.kind not in "iu" or label.min() < 0:
            return []
        return [str(number) for number in range(int(label.max()) + 1)]

    def read(self, start: int, stop: int) -> Records:
        return {name: np.ascontiguousarray(array[start:stop]) for name, array in self.arrays.items()}


def _load(path: str) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
        file.seek(0)
        if zipped:
            return dict(np.load(file, allow_pickle=False))
        np.lib.format.read_magic(file)  # np.load would leave a file open that is neither
    return {Path(path).stem: np.load(path, allow_pickle=False, mmap_mode="r")}
