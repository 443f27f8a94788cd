"""TFRecord files of ``tf.train.Example``, without TensorFlow.

The frames are read here, so that every length and checksum is compared. The ``tfrecord`` package
(MIT) parses the messages.
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts.records import Manifest
from framework.errors import DataError, ResourceError
from framework.input.rows import Row, RowInput, text_by_field
from framework.store.files import named_files, unreadable
from framework.store.foreign import check_classes, text_of
from framework.system.user_code import pip_install

HEAD = struct.Struct("<QI")  # length of the data, masked CRC32C of these 8 bytes
TAIL = struct.Struct("<I")  # masked CRC32C of the data


def library() -> tuple[Any, Callable[[bytes], int], type[Exception]]:
    """Import the class of Examples, the CRC32C and the error of messages. ResourceError R160."""
    try:
        from crc32c import crc32c  # noqa: PLC0415  # an extra
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from tfrecord import example_pb2  # noqa: PLC0415
    except ImportError as error:
        what = f"the tfrecord package is not installed ({error})"
        raise ResourceError(160, "input = tfrecord", what, pip_install("tfrecord")) from error
    messages: Any = example_pb2
    return messages.Example, crc32c, DecodeError


def masked(crc: int) -> int:
    """Return TFRecord's mask of a CRC32C ("Masking" in TensorFlow's record_writer format notes)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@final
@dataclass(eq=False)
class TFRecordInput(RowInput):
    """Records in the byte order of the files' names; a key is the file's name and a number.

    Bytes are an image file, for ``label`` one of ``classes``, or UTF-8 of the kind ``text``.
    Numbers are int64 or float32; a single one is a scalar, unless it has a kind.
    ``conf/input/tfrecord.yaml`` describes the options.
    """

    path: str
    features: Mapping[str, str]
    classes: Sequence[str] | None

    def __post_init__(self) -> None:
        example = "{image: image/encoded, label: image/class/label}"
        self.features = text_by_field("features", self.features, example)
        self.classes = check_classes((), self.classes, self.path)

    @cached_property
    def files(self) -> list[str]:
        return named_files(self.path)

    @cached_property
    def frames(self) -> np.ndarray:
        """The file, number in it, first byte and size of each Example: int64 [N, 4]. D110, D166."""
        _, crc32c, _ = library()
        frames: list[tuple[int, int, int, int]] = []
        fix = "get the file again; compressed ones must be unpacked with gzip -d"
        for number, path in enumerate(self.files):
            start = count = 0
            try:
                with open(path, "rb") as file:
                    end = os.fstat(file.fileno()).st_size
                    while start < end:
                        file.seek(start)
                        head = file.read(HEAD.size).ljust(HEAD.size, b"\0")
                        size, crc = HEAD.unpack(head)
                        first = start + HEAD.size
                        is_frame = first > end or crc == masked(crc32c(head[:8]))
                        if not is_frame or first + size + TAIL.size > end:
                            what = "truncated" if is_frame else "not a TFRecord, or damaged"
                            raise DataError(166, path, f"{what} at byte {start}", fix)
                        frames.append((number, count, first, size))
                        start = first + size + TAIL.size
                        count += 1
            except OSError as error:
                raise unreadable(path, error) from error
        if not frames:
            raise DataError(110, self.path, "no record", "give TFRecord files")
        return np.array(frames, np.int64)

    def described(self) -> Manifest:
        source = f"tfrecord {self.path}"
        return Manifest(len(self.frames), {}, self.classes or [], source=source)

    def row(self, index: int) -> Row:
        name = self.name(index)
        example, crc32c, decode_error = library()
        file_number, _, start, size = self.frames[index].tolist()
        path = self.files[file_number]
        try:
            with open(path, "rb") as file:
                file.seek(start)
                message, crc = file.read(size), file.read(TAIL.size)
        except OSError as error:
            raise unreadable(path, error) from error
        if len(crc) < TAIL.size or TAIL.unpack(crc)[0] != masked(crc32c(message)):
            what = "its bytes are not what their CRC32C says"
            raise DataError(166, name, what, "get the file again")
        try:
            features = example.FromString(message).features.feature
        except (decode_error, ValueError) as error:
            what = f"not a tf.train.Example ({error})"
            raise DataError(166, name, what, "give files of Examples") from error
        row: Row = {}
        for field, feature in self.features.items():
            if feature not in features:
                what = f"no feature {feature!r}, but {', '.join(sorted(features)[:10])}"
                raise DataError(167, name, what, "correct input.features")
            where, values = f"{name}: {feature}", features[feature]
            arrays = {
                "int64_list": np.array(values.int64_list.value, np.int64),
                "float_list": np.array(values.float_list.value, np.float32),
            }
            array: Any = arrays.get(values.WhichOneof("kind"))
            kind = self.kinds.get(field)
            if array is not None:
                row[field] = array.reshape(()) if len(array) == 1 and kind is None else array
                continue
            texts = values.bytes_list.value
            if len(texts) != 1:
                what = f"holds {len(texts)} values"
                raise DataError(167, where, what, "give one image file, or numbers")
            if kind == "text":
                row[field] = text_of(texts[0], field, where, "input")
            elif field != "label":
                row[field] = texts[0]
            else:
                label, classes = texts[0].decode("utf-8", "surrogateescape"), self.classes or []
                if label not in classes:
                    fix = "name all classes there, or take a feature of numbers"
                    raise DataError(161, where, f"{label!r} is not in input.classes", fix)
                row[field] = np.array(classes.index(label), np.int64)
        return row

    def _place(self, index: int) -> tuple[str, int]:
        file, number, _, _ = self.frames[index].tolist()
        return self.files[file], number

    def key(self, index: int) -> str:
        file, number = self._place(index)
        return f"{os.path.basename(file)}:{number}"

    def name(self, index: int) -> str:
        file, number = self._place(index)
        return f"{file}: record {number}"

    def item_files(self, index: int) -> Sequence[str]:
        return (self._place(index)[0],)
