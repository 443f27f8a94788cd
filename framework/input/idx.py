"""MNIST's IDX format: a file of images and a file of labels, gzipped or not.

Source: the MNIST page: two zero bytes, a type byte, the number of dimensions, each dimension as a
big-endian uint32, then the values.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from framework.errors import DataError
from framework.input.rows import ColumnInput, read_file
from framework.store.foreign import GZIP, IDX, most_bytes


def read_idx(path: str) -> np.ndarray:
    """Return the array in an IDX file of unsigned bytes. DataError D101 or D113."""
    data = read_file(path)
    if data.startswith(GZIP):
        most = most_bytes(len(data))
        try:
            with gzip.open(path) as file:
                size, data = len(data), file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(113, path, f"cannot be read ({error})", "get the file again") from error
        if len(data) > most:
            what = f"holds more than {most} bytes, compressed to {size}"
            raise DataError(113, path, what, "unpack it with gzip -d if you trust it")
    num_dimensions = int.from_bytes(data[3:4], "big")
    start = 4 + 4 * num_dimensions
    if not data.startswith(IDX) or len(data) < start:
        raise DataError(113, path, "not an IDX file of unsigned bytes", "get the file again")
    shape = struct.unpack_from(f">{num_dimensions}I", data, 4)
    if len(data) - start != math.prod(shape):
        what = f"truncated: {shape} wants {math.prod(shape)} bytes, have {len(data) - start}"
        raise DataError(113, path, what, "get the file again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


@final
class IdxInput(ColumnInput):
    """Fields ``image`` uint8 [1, H, W] and ``label``. Keys are the records' numbers."""

    kind = "idx"
    classes = None

    def __init__(self, images: str, labels: str) -> None:
        self.path, self.labels = images, labels

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        images, labels = read_idx(self.path), read_idx(self.labels)
        if images.ndim != 3 or labels.ndim != 1:
            what = f"images of shape {images.shape}, labels {labels.shape}"
            raise DataError(113, self.path, what, "give images first, then labels")
        return {"image": images[:, None], "label": labels.astype(np.int64)}

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path, self.labels)
