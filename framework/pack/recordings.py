"""The preparation of sounds and videos for a store.

Sounds get one rate and one number of channels. Each frame of a video is prepared as an image.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from framework.contracts.records import Chunk, Field, Records
from framework.errors import DataError
from framework.media.decode import convert, decode
from framework.media.header import BadImage
from framework.media.sound_file import BadSound, checked_header, resampled
from framework.media.video_file import (
    BadFrames,
    BadVideo,
    frames_of,
    holds_files,
    joined_files,
    video_frames,
)

if TYPE_CHECKING:
    from framework.pack.images import Preparation

MOST_BYTES = (1 << 31) - 1  # of a record; LMDB holds no more


@final
class SoundRates:
    """A pure, picklable change of sounds, which are decoded once to find damage.

    ``rate`` is what all become, in Hz; None: all must have that of ``first``, whose number of
    channels all need.
    """

    def __init__(self, names: Sequence[str], rate: int | None, first: Chunk) -> None:
        self.names, self.rate = names, rate
        data, where = first.records[names[0]][0], f"{first.keys[0]}: {names[0]}"
        try:
            self.first = checked_header(data)
        except BadSound as error:
            raise _bad_sound(where, error) from error
        self.stored_rate = rate or self.first.rate  # in Hz

    def __call__(self, chunk: Chunk) -> Records:
        """Return the fields. DataError D181 for a file that is not readable, D180 for others."""
        records: Records = {}
        for name in self.names:
            pairs = zip(chunk.records[name], chunk.keys, strict=True)
            records[name] = [self._prepared(data, f"{key}: {name}") for data, key in pairs]
        return records

    def _prepared(self, data: Any, where: str) -> Any:
        try:
            header = checked_header(data)
            if header.channels != self.first.channels:
                what = f"has {header.channels} channels, the first has {self.first.channels}"
                raise DataError(180, where, what, "pack files with as many channels")
            if header.rate == self.stored_rate:
                return data
            if self.rate is None:
                what = f"has {header.rate} samples per second, the first has {self.first.rate}"
                raise DataError(180, where, what, f"add pack.rate={self.first.rate}")
            return np.frombuffer(resampled(data, self.rate), np.uint8)
        except BadSound as error:
            raise _bad_sound(where, error) from error


def _bad_sound(where: str, error: BadSound) -> DataError:
    what = f"not a readable WAV or FLAC file ({error})"
    return DataError(181, where, what, "correct or remove it")


@final
class VideoFrames:
    """A pure, picklable change of videos, or of packed frames, into frames as ``images`` has them.

    ``channels`` and ``frame_rate`` may be None: as in the input.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        images: "Preparation",
        channels: int | None,
        frame_rate: float | None,
    ) -> None:
        self.given = fields
        self.images = images
        self.rate: Fraction | None = None
        if frame_rate is not None:
            self.rate = Fraction(str(frame_rate))
        self.stored: dict[str, Field] = {}
        for name, field in fields.items():
            height, width = field.shape[1:3]
            size: tuple[int | None, int | None] = (None, None)  # raw frames of files: not yet
            if images.encode not in ("jpeg", "png") and height and width:
                size = images.scaled_size((height, width))
            self.stored[name] = replace(field, shape=(None, *size, channels or field.shape[3]))

    @property
    def lack_size(self) -> bool:
        """Whether ``set_size`` must come first."""
        shapes = [field.shape[1:] for field in self.stored.values()]
        return self.images.encode == "raw" and any(None in shape for shape in shapes)

    def set_size(self, chunk: Chunk) -> None:
        """Set the size of raw frames: that of the first ones in the chunk. DataError D260."""
        for name, field in self.stored.items():
            first = next(self._frames(chunk.records[name][0], chunk.keys[0], name))
            self.stored[name] = replace(field, shape=(None, *first.shape))

    def __call__(self, chunk: Chunk) -> Records:
        """Return the fields. DataError D260 for a video that is not readable, D107 for a size."""
        records: Records = {}
        for name in self.given:
            pairs = zip(chunk.records[name], chunk.keys, strict=True)
            records[name] = [self._value(data, key, name) for data, key in pairs]
        return records

    def _value(self, data: Any, key: str, name: str) -> Any:
        stored = self.stored[name]
        are_files = None in stored.shape[1:]
        is_kept = self.images.encode == "keep" or not are_files
        is_kept = is_kept and self.rate is None  # else ``_frames`` refuses packed frames
        if is_kept and self.given[name] == stored and _are_frames(data, stored):
            return data
        parts: list[bytes] = []
        total = 0
        for frame in self._frames(data, key, name):
            if are_files:
                parts.append(self.images.encoded(frame.transpose(2, 0, 1)))
            else:
                if frame.shape != stored.row_shape:
                    sizes = ["x".join(map(str, shape)) for shape in (frame.shape, stored.row_shape)]
                    what = f"{name} is {sizes[0]}, the first {sizes[1]}"
                    fix = "set pack.size=[height,width], or pack.encode=jpeg or png"
                    raise DataError(107, key, what, fix)
                parts.append(frame.tobytes())
            total += len(parts[-1])
            if total > MOST_BYTES:
                why = "its frames take 2 GiB: cut it, or set pack.frame_rate or pack.size"
                raise _bad_video(key, name, why)
        return joined_files(parts) if are_files else b"".join(parts)

    def _frames(self, data: Any, key: str, name: str) -> Iterator[np.ndarray]:
        """Yield the prepared frames: uint8 [H, W, C]. DataError D260."""
        field, channels = self.given[name], self.stored[name].shape[3] or 3
        max_pixels = self.images.max_pixels
        try:
            if not _are_frames(data, field):
                frames: Any = video_frames(data, self.rate, max_pixels)
            elif self.rate is not None:
                raise BadVideo("packed frames have no times: leave pack.frame_rate out")
            else:
                frames = frames_of(data, field)
            for frame in frames:
                pixels = frame
                if not isinstance(frame, np.ndarray):
                    pixels = decode(frame, field.shape[3] or 3, max_pixels)
                pixels = convert(pixels, channels)
                yield self.images.scaled(pixels, pixels.shape[:2])
        except (BadVideo, BadFrames, BadImage) as error:
            raise _bad_video(key, name, error) from error


def _are_frames(data: Any, field: Field) -> bool:
    """Return whether a value holds frames already, and is no video file."""
    return None not in field.shape[1:] or holds_files(data)


def _bad_video(key: str, name: str, why: object) -> DataError:
    what = f"{name} is not a readable video ({why})"
    return DataError(260, key, what, "correct or remove it")
