"""WAV and FLAC files in memory: their header, a window of their samples, another rate."""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from framework.system.extras import needed

EXTRA = "audio"
SUFFIXES = (".wav", ".flac")
MOST_SAMPLES = 1 << 28  # 90 minutes at 48 kHz; FLAC writes silence in a few bytes
OF_16_BITS = ("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW")
OF_FLOATS = ("FLOAT", "DOUBLE")
BLOCK_FRAMES = 1 << 16
CHUNK = struct.Struct("<4sI")  # of a WAV file: its name, and its bytes behind these 8
MOST_CHUNKS = 1000
UNKNOWN_BYTES = (0xFFFFFFFF, 0x7FFFF000)  # that FFmpeg and SoX write to a pipe


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
    with _opened(data) as file:
        return SoundHeader(file.samplerate, file.channels, file.frames)


def checked_header(data: Any) -> SoundHeader:
    """Return the header of a file whose frames can all be decoded. BadSound, ResourceError R112."""
    with _opened(data) as file:
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
    with _opened(data) as file:
        count = file.frames - start if count is None else count
        if start:
            file.seek(start)
        samples = file.read(count, dtype="float32")
    if len(samples) != count:
        raise BadSound(f"truncated: {len(samples)} of {count} frames from {start}")
    return samples


def resampled(data: Any, rate: int) -> bytes:
    """Return a file with another rate, as FLAC of 16 bits, or of 24 if the file has more."""
    needed("soxr", EXTRA)
    import soundfile  # noqa: PLC0415
    import soxr  # noqa: PLC0415

    with _opened(data) as file:
        if file.samplerate == rate:
            return bytes(data)
        subtype = "PCM_16" if file.subtype in OF_16_BITS else "PCM_24"
        samples = soxr.resample(file.read(file.frames, dtype="float64"), file.samplerate, rate)
    target = BytesIO()
    soundfile.write(target, samples, rate, format="FLAC", subtype=subtype)
    return target.getvalue()


@contextmanager
def _opened(data: Any) -> Generator[Any]:
    needed("soundfile", EXTRA)
    import soundfile  # noqa: PLC0415

    if not is_sound(data):  # soundfile reads many other formats
        raise BadSound("it begins as neither")
    _check_size(data)
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if not 0 <= file.frames * file.channels <= MOST_SAMPLES:
                raise BadSound(f"{file.frames} frames of {file.channels} channels")
            yield file
    except soundfile.LibsndfileError as error:  # whose text has the address of the file in memory
        raise BadSound(error.error_string) from error
    except (RuntimeError, TypeError) as error:  # soundfile's own, also for a seek
        raise BadSound(" ".join(str(error).split())[:200]) from error


def _check_size(data: Any) -> None:
    """Check that a WAV file holds all samples of its header, on which libsndfile is silent."""
    view, place = memoryview(data), 12
    if bytes(view[:4]) != b"RIFF":
        return
    for _ in range(MOST_CHUNKS):
        if place + CHUNK.size > len(view):
            raise BadSound("truncated: its samples are missing")
        name, size = CHUNK.unpack_from(view, place)
        place += CHUNK.size
        if name == b"data":
            if size > len(view) - place and size not in UNKNOWN_BYTES:
                raise BadSound(f"truncated: {len(view) - place} of {size} bytes of samples")
            return
        place += size + size % 2
    raise BadSound(f"more than {MOST_CHUNKS} chunks")
