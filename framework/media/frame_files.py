"""The frames of a video as image files in one value, of which some are read without the others.

A value is ``MAGIC``, where each file begins and the last one ends (64 bits), and the files.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from framework.contracts.records import Field

MAGIC = b"frames\x00\x01"
WORD = np.dtype("<u8")


class BadFrames(ValueError):
    """A value that does not hold frames."""


def joined_files(files: Sequence[bytes]) -> bytes:
    """Return image files as one value."""
    first = len(MAGIC) + WORD.itemsize * (len(files) + 1)
    index = np.cumsum([first, *map(len, files)], dtype=WORD)
    return b"".join([MAGIC, index.tobytes(), *files])


def holds_files(data: Any) -> bool:
    """Return whether a value begins as ``joined_files`` makes it."""
    return bytes(data[: len(MAGIC)]) == MAGIC


@final
class FrameFiles:
    """The files in a value, which is not copied. BadFrames for another or a damaged value."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)
        start = len(MAGIC)
        if not holds_files(data) or len(data) < start + 2 * WORD.itemsize:
            raise BadFrames("does not hold frames")
        first = int(np.frombuffer(self.data, WORD, 1, start)[0])
        count, rest = divmod(first - start, WORD.itemsize)
        if rest or count < 2 or first > len(data):
            raise BadFrames(f"an index of {first} bytes")
        self.index = np.frombuffer(self.data, WORD, count, start)
        if self.index[-1] != len(data) or (self.index[1:] < self.index[:-1]).any():
            raise BadFrames("its index does not fit it")

    def __len__(self) -> int:
        return len(self.index) - 1

    def __getitem__(self, number: int) -> memoryview:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.data[int(self.index[number]) : int(self.index[number + 1])]


def frames_of(data: Any, field: Field) -> FrameFiles | np.ndarray:
    """Return the frames of a record without copying them: files, or uint8 [T, H, W, C].

    BadFrames if the value is damaged.
    """
    if None in field.shape[1:]:
        return FrameFiles(data)
    values = np.frombuffer(data, np.uint8)
    if not values.size or values.size % math.prod(field.row_shape):
        raise BadFrames(f"{values.size} bytes, frames of {field.row_shape} are wanted")
    return values.reshape(-1, *field.row_shape)
