"""TFRecord files of ``tf.train.Example``, without TensorFlow.

The frames (length, its CRC32C, data, its CRC32C) are read here, since every length and checksum is to be looked at; the messages
are parsed by the ``tfrecord`` package (MIT; it reads and writes the same files).
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.records import Chunk, Manifest
from framework.errors import ConfigError, DataError, ResourceError
from framework.input.array_values import Row, chunk_of, first_fields
from framework.input.file_items import named_files
from framework.input.label import check_classes

HEAD = struct.Struct("<QI")  # length of the data, masked CRC32C of these 8 bytes
TAIL = struct.Struct("<I")  # masked CRC32C of the data


class Frame(NamedTuple):
    """Where an Example's bytes lie."""

    file: int
    start: int
    size: int


class Library(NamedTuple):
    """The ``tfrecord`` package's message type, and its checksum."""

    parse: Callable[[bytes], Any]
    crc32c: Callable[[bytes], int]
    decode_error: type[Exception]


def library() -> Library:
    """What the ``tfrecord`` package brings. ResourceError R160 where it is not installed."""
    try:
        from crc32c import crc32c  # noqa: PLC0415  # an extra
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from tfrecord import example_pb2  # noqa: PLC0415
    except ImportError as error:
        where, fix = "input = tfrecord", "pip install 'paceline[tfrecord]'"
        raise ResourceError(
            160, where, f"the tfrecord package is not installed ({error})", fix
        ) from error
    messages: Any = example_pb2
    return Library(messages.Example.FromString, crc32c, DecodeError)


def masked(crc: int) -> int:
    """TFRecord's mask of a CRC32C. Source: "Masking" in TensorFlow's record_writer format notes."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@final
class TFRecordInput:
    """Records in the byte order of the files' names; a record's key is its file's name and its number in it.

    ``features``: field -> feature. A bytes feature is an image file; numbers are int64 or float32, one of them a scalar. ``classes``:
    names in the order of their numbers; a bytes feature as ``label`` is such a name. Null: none are named, since to find them all
    files would have to be read twice. An Example whose checksum does not agree is an error.
    """

    def __init__(
        self, path: str, features: Mapping[str, str], classes: Sequence[str] | None
    ) -> None:
        if not hasattr(features, "items") or not features:
            fix = "give input.features={image: image/encoded, label: image/class/label}"
            raise ConfigError(162, f"input.features = {features}", "not field: feature", fix)
        self.path, self.classes = path, check_classes((), classes, path) if classes else []
        self.features = {str(field): str(feature) for field, feature in features.items()}

    @cached_property
    def items(self) -> tuple[list[str], np.ndarray]:
        """(files, int64 [records, 3]: file, start, size). DataError D166 for a damaged file, D110 for none with records."""
        files, crc32c = named_files(self.path), library().crc32c
        frames = [
            frame for number, file in enumerate(files) for frame in _frames(file, number, crc32c)
        ]
        if not frames:
            raise DataError(110, self.path, "no record", "give TFRecord files")
        return files, np.array(frames, np.int64)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The number of each file's first record."""
        files, frames = self.items
        return np.searchsorted(frames[:, 0], np.arange(len(files)))

    @cached_property
    def manifest(self) -> Manifest:
        num_records = len(self.items[1])
        fields = first_fields(num_records, lambda index: [self._row(index)], self.name)
        return Manifest(num_records, fields, self.classes, source=f"tfrecord {self.path}")

    def read(self, start: int, stop: int) -> Chunk:
        rows = [self._row(index) for index in range(start, stop)]
        keys = [self._key(index) for index in range(start, stop)]
        return chunk_of(rows, keys, self.manifest.fields, lambda number: self.name(start + number))

    def _row(self, index: int) -> Row:
        found = self._example(index).features.feature
        row: Row = {}
        for field, feature in self.features.items():
            if feature not in found:
                what = f"no feature {feature!r}, but {', '.join(sorted(found)[:10])}"
                raise DataError(167, self.name(index), what, "correct input.features")
            row[field] = self._value(field, found[feature], f"{self.name(index)}: {feature}")
        return row

    def _example(self, index: int) -> Any:
        lib, data = library(), self._bytes(index)
        if TAIL.unpack(data[-4:])[0] != masked(lib.crc32c(data[:-4])):
            raise DataError(
                166,
                self.name(index),
                "its bytes are not what their CRC32C says",
                "get the file again",
            )
        try:
            return lib.parse(data[:-4])
        except (lib.decode_error, ValueError) as error:
            raise DataError(
                166, self.name(index), f"not a tf.train.Example ({error})", "give files of Examples"
            ) from error

    def _bytes(self, index: int) -> bytes:
        """An Example's bytes and their CRC32C."""
        files, frames = self.items
        frame = Frame(*frames[index].tolist())
        try:
            with open(files[frame.file], "rb") as file:
                file.seek(frame.start)
                data = file.read(frame.size + TAIL.size)
        except OSError as error:
            raise DataError(
                101, files[frame.file], f"cannot be read ({error.strerror})", "mend it"
            ) from error
        if len(data) != frame.size + TAIL.size:
            raise DataError(166, self.name(index), "truncated", "get the file again")
        return data

    def _value(self, field: str, feature: Any, where: str) -> bytes | np.ndarray:
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if kind in ("int64_list", "float_list"):
            array = np.array(values, np.int64 if kind == "int64_list" else np.float32)
            return array.reshape(()) if len(array) == 1 else array
        if len(values) != 1:
            raise DataError(
                167, where, f"holds {len(values)} values", "give one image file, or numbers"
            )
        return self._class_number(values[0], where) if field == "label" else values[0]

    def _class_number(self, data: bytes, where: str) -> np.ndarray:
        name = data.decode("utf-8", "surrogateescape")
        if name not in self.classes:
            raise DataError(
                161,
                where,
                f"{name!r} is not in input.classes",
                "name all classes there, or take a feature of numbers",
            )
        return np.array(self.classes.index(name), np.int64)

    def _key(self, index: int) -> str:
        files, frames = self.items
        file = int(frames[index, 0])
        return f"{os.path.basename(files[file])}:{index - int(self.firsts[file])}"

    def name(self, index: int) -> str:
        files, frames = self.items
        file = int(frames[index, 0])
        return f"{files[file]}: record {index - int(self.firsts[file])}"


def _frames(path: str, number: int, crc32c: Callable[[bytes], int]) -> list[Frame]:
    """Where each Example of a file lies; the lengths are compared with their checksums and with the file's size. DataError D166."""
    frames: list[Frame] = []
    try:
        with open(path, "rb") as file:
            start, end = 0, os.fstat(file.fileno()).st_size
            while start < end:
                file.seek(start)
                head = file.read(HEAD.size)
                if len(head) < HEAD.size:
                    raise _damaged(path, start, "truncated")
                size, crc = HEAD.unpack(head)
                if crc != masked(crc32c(head[:8])):
                    raise _damaged(path, start, "not a TFRecord, or damaged")
                if start + HEAD.size + size + TAIL.size > end:
                    raise _damaged(path, start, "truncated")
                frames.append(Frame(number, start + HEAD.size, size))
                start += HEAD.size + size + TAIL.size
    except OSError as error:
        raise DataError(
            101, path, f"cannot be read ({error.strerror})", "mend it, or give read permission"
        ) from error
    return frames


def _damaged(path: str, start: int, what: str) -> DataError:
    return DataError(
        166,
        path,
        f"{what} at byte {start}",
        "get the file again; compressed ones must be unpacked with gzip -d",
    )
