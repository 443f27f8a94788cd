"""Sound and video files in memory, and frames as packing stores them.

- PyAV decodes the frames of videos. A frame is uint8 [H, W, 3] (RGB), turned upright by the file's
  rotation. Only the formats of ``VIDEOS`` are read: others may name further files or addresses.
- A frame that the decoder had to repair, another size, and a missing end are errors, which MPEG-PS
  does not show.

Stored frames that are image files are one value: ``MAGIC``, where each file begins and the last one
ends (64 bits), and the files. So some are read without the others.
"""

import math
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from io import BytesIO
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.records import Field
from framework.system.user_code import needed

SOUNDS = (".wav", ".flac")
MOST_SAMPLES = 1 << 28  # 90 minutes at 48 kHz; FLAC writes silence in a few bytes
OF_16_BITS = ("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW")
OF_FLOATS = ("FLOAT", "DOUBLE")
BLOCK_FRAMES = 1 << 16
CHUNK = struct.Struct("<4sI")  # of a WAV file: its name, and its bytes behind these 8
MOST_CHUNKS = 1000
UNKNOWN_BYTES = (0xFFFFFFFF, 0x7FFFF000)  # that FFmpeg and SoX write to a pipe
VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
QUICKTIME = (b"ftyp", b"moov", b"mdat", b"wide")  # the first part of a file
STILLS = (b"avif", b"heic", b"heix", b"mif1")  # images in the same container
MOST_FRAMES = 1 << 20  # nearly 10 hours, at 30 a second
ENOUGH = Fraction(9, 10)  # of the declared duration, which is not exact
MAGIC = b"frames\x00\x01"
WORD = np.dtype("<u8")


class BadSound(ValueError):
    """A file that is not a whole WAV or FLAC file."""


class SoundHeader(NamedTuple):
    """What a file says of itself. A frame is a sample of each channel."""

    rate: int
    channels: int
    num_frames: int


def is_sound(data: Any) -> bool:
    """Return whether a file begins as WAV or FLAC."""
    head = bytes(data[:12])
    return head[:4] == b"fLaC" or (head[:4] == b"RIFF" and head[8:] == b"WAVE")


def sound_header(data: Any) -> SoundHeader:
    """Return the header of a file in memory. BadSound, ResourceError R112."""
    with _sound(data) as file:
        return SoundHeader(file.samplerate, file.channels, file.frames)


def checked_header(data: Any) -> SoundHeader:
    """Return the header of a file whose frames can all be decoded. BadSound, ResourceError R112."""
    with _sound(data) as file:
        dtype = np.float32 if file.subtype in OF_FLOATS else np.int16
        num_frames = 0
        memory = np.empty((BLOCK_FRAMES, file.channels), dtype)
        # Files of GSM and the like have no number of frames by default: they cannot seek.
        for block in file.blocks(frames=file.frames, out=memory):
            num_frames += len(block)
            if not np.isfinite(block).all():
                raise BadSound("a sample is not a finite number")
        if num_frames != file.frames:
            raise BadSound(f"truncated: {num_frames} of {file.frames} frames")
        return SoundHeader(file.samplerate, file.channels, file.frames)


def read_sound(data: Any, start: int = 0, count: int | None = None) -> np.ndarray:
    """Return ``count`` frames from ``start``, by default all: float32 [n], or [n, channels].

    Only the window is decoded. Integers become -1 to 1.
    """
    with _sound(data) as file:
        count = file.frames - start if count is None else count
        if start:
            file.seek(start)
        samples = file.read(count, dtype="float32")
    if len(samples) != count:
        raise BadSound(f"truncated: {len(samples)} of {count} frames from {start}")
    return samples


def resampled(data: Any, rate: int) -> bytes:
    """Return a file with another rate, as FLAC of 16 bits, or of 24 if the file has more."""
    needed("soxr", "audio")
    import soundfile  # noqa: PLC0415
    import soxr  # noqa: PLC0415

    with _sound(data) as file:
        if file.samplerate == rate:
            return bytes(data)
        subtype = "PCM_16" if file.subtype in OF_16_BITS else "PCM_24"
        samples = soxr.resample(file.read(file.frames, dtype="float64"), file.samplerate, rate)
    target = BytesIO()
    soundfile.write(target, samples, rate, format="FLAC", subtype=subtype)
    return target.getvalue()


@contextmanager
def _sound(data: Any) -> Generator[Any]:
    needed("soundfile", "audio")
    import soundfile  # noqa: PLC0415

    if not is_sound(data):  # soundfile reads many other formats
        raise BadSound("it begins as neither")
    view, place = memoryview(data), 12
    # Libsndfile is silent about a WAV file that does not hold all samples of its header.
    for _ in range(MOST_CHUNKS):
        if bytes(view[:4]) != b"RIFF":
            break
        if place + CHUNK.size > len(view):
            raise BadSound("truncated: its samples are missing")
        name, size = CHUNK.unpack_from(view, place)
        place += CHUNK.size
        if name == b"data":
            if size > len(view) - place and size not in UNKNOWN_BYTES:
                raise BadSound(f"truncated: {len(view) - place} of {size} bytes of samples")
            break
        place += size + size % 2
    else:
        raise BadSound(f"more than {MOST_CHUNKS} chunks")
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if not 0 <= file.frames * file.channels <= MOST_SAMPLES:
                raise BadSound(f"{file.frames} frames of {file.channels} channels")
            yield file
    except soundfile.LibsndfileError as error:  # its text has the address of the file in memory
        raise BadSound(error.error_string) from error
    except (RuntimeError, TypeError) as error:  # soundfile's own, also for a seek
        raise BadSound(" ".join(str(error).split())[:200]) from error


class BadVideo(ValueError):
    """A file that is not a whole video."""


class BadFrames(ValueError):
    """A value that does not hold frames."""


class _Timed(NamedTuple):
    """A frame of PyAV's, and when it is shown, in seconds."""

    frame: Any
    begin: Fraction
    end: Fraction


def video_format(data: Any) -> str | None:
    """Return FFmpeg's name for the format as which a file begins; None if it is no known video."""
    head = bytes(data[:12])
    if head[4:8] in QUICKTIME and head[8:] not in STILLS:
        return "mov"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:] == b"AVI ":
        return "avi"
    return "mpeg" if head[:4] == b"\0\0\1\xba" else None


def video_frames(data: Any, rate: Fraction | None, max_pixels: int) -> Iterator[np.ndarray]:
    """Yield the frames of a file in memory: uint8 [H, W, 3], at most ``max_pixels`` each.

    ``rate`` is frames per second: at each tick, the frame that is shown then. None: all frames.
    BadVideo for a damaged file, or one of larger frames or too many; ResourceError R112.
    """
    needed("av", "video")
    import av  # noqa: PLC0415
    import av.error  # noqa: PLC0415
    import av.logging  # noqa: PLC0415

    av.logging.set_level(None)  # our errors name the problem
    name = video_format(data)
    if name is None:
        raise BadVideo("not a file of a known format")
    count = 0
    try:
        with av.open(BytesIO(data), format=name, metadata_errors="replace") as container:
            stream: Any = container.streams.best("video")
            if stream is None or stream.codec_context is None:
                raise BadVideo("no video in it that can be decoded")
            frames = _decoded(container, stream, max_pixels)
            for timed in frames if rate is None else _at_rate(frames, rate):
                count += 1
                if count > MOST_FRAMES:
                    raise BadVideo(f"more than {MOST_FRAMES:,} frames")
                turns, rest = divmod(timed.frame.rotation, 90)
                if rest:
                    raise BadVideo(f"rotated by {timed.frame.rotation} degrees")
                pixels = timed.frame.to_ndarray(format="rgb24")
                yield np.ascontiguousarray(np.rot90(pixels, turns))
    except av.error.FFmpegError as error:
        raise BadVideo(error.strerror) from error
    except (ArithmeticError, UnicodeError, MemoryError) as error:
        raise BadVideo(f"damaged: {type(error).__name__}") from error
    if not count:
        raise BadVideo("no frame in it")


def _decoded(container: Any, stream: Any, max_pixels: int) -> Iterator[_Timed]:
    codec = stream.codec_context
    codec.thread_count = 1  # packing has a process per core
    codec.options = {"max_pixels": str(max_pixels)}  # what a frame itself says
    _check_size(codec.width, codec.height, max_pixels)
    size: tuple[int, int] | None = None
    end = start = Fraction(0)
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise BadVideo("damaged: a frame cannot be decoded whole")
        _check_size(frame.width, frame.height, max_pixels)
        begin = end
        if frame.pts is not None and frame.time_base is not None:  # AVI does not always say it
            begin = frame.pts * frame.time_base
        if size is None:
            size, start = (frame.width, frame.height), begin
        if size != (frame.width, frame.height):
            was = f"{size[1]} x {size[0]}"
            raise BadVideo(f"a frame is {frame.height} x {frame.width}, those before it {was}")
        end = begin
        if frame.duration and frame.time_base:
            end += frame.duration * frame.time_base
        elif stream.average_rate:
            end += 1 / stream.average_rate
        yield _Timed(frame, begin, end)
    declared, name = Fraction(0), stream.container.format.name  # in seconds
    # QuickTime's reader itself notices a missing end, and edits may leave frames out.
    if name == "avi" and stream.average_rate:
        declared = stream.frames / stream.average_rate
    elif name.startswith("matroska"):
        with suppress(ValueError, ZeroDivisionError):  # a text such as 00:01:02.500000000
            hours, minutes, seconds = stream.metadata.get("DURATION", "").split(":")
            declared = (int(hours) * 60 + int(minutes)) * 60 + Fraction(seconds)
    if end - start < ENOUGH * declared:
        raise BadVideo(f"truncated: {float(end - start):.3g} of {float(declared):.3g} seconds")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        size = f"frames of {height} x {width} pixels"
        raise BadVideo(f"{size} are more than {max_pixels}, which pack.max_pixels may raise")


def _at_rate(frames: Iterator[_Timed], rate: Fraction) -> Iterator[_Timed]:
    """Yield the frame that is shown at each tick, the first at tick 0."""
    shown: _Timed | None = None
    start = Fraction(0)
    ticks = 0
    for timed in frames:
        if shown is None:
            start = timed.begin
        while shown is not None and start + ticks / rate < timed.begin:
            yield shown
            ticks += 1
        shown = timed
    while shown is not None and (not ticks or start + ticks / rate < shown.end):
        yield shown
        ticks += 1


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
