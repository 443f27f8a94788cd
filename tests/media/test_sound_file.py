import contextlib
import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.media.sound_video import (
    BadSound,
    checked_header,
    is_sound,
    read_sound,
    resampled,
    sound_header,
)


def sound(frames=800, rate=8000, channels=1, kind="WAV", subtype="PCM_16", hertz=100.0):
    """Return the bytes of a file that soundfile wrote: a sine, negated in the second channel."""
    wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(frames) / rate)
    samples = wave if channels == 1 else np.stack([wave, -wave], 1)
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


KINDS = [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("FLAC", "PCM_16")]
every = pytest.mark.parametrize(("kind", "subtype"), KINDS)


@every
@pytest.mark.parametrize("channels", [1, 2])
def test_a_window_is_a_part_of_the_whole(kind, subtype, channels):
    data = sound(5000, 8000, channels, kind, subtype)
    whole = read_sound(data)
    assert is_sound(data)
    assert sound_header(data) == (8000, channels, 5000)
    assert np.array_equal(whole, soundfile.read(io.BytesIO(data), dtype="float32")[0])
    assert np.array_equal(read_sound(data, 4100, 300), whole[4100:4400])


@every
def test_another_rate_keeps_the_tone_and_gives_the_same_bytes_each_time(kind, subtype):
    file = sound(8000, 8000, kind=kind, subtype=subtype)
    data = resampled(file, 16000)
    assert sound_header(data)[::2] == (16000, 16000)
    expected = 0.5 * np.sin(2 * np.pi * 100 * np.arange(16000) / 16000)
    assert np.abs(read_sound(data) - expected)[200:-200].max() < 1e-3
    assert resampled(data, 16000) == data
    assert resampled(file, 16000) == data


@every
def test_a_truncated_file_is_never_a_shorter_sound(kind, subtype):
    data = sound(300, 8000, 1, kind, subtype)
    for size in range(0, len(data) - (len(data) % 2), 3):
        with pytest.raises(BadSound):
            checked_header(data[:size])
        with pytest.raises(BadSound):
            read_sound(data[:size])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", None),
        (b"RIFF", None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"no sound at all", None),
        (sound(300)[:12] + b"junk\0\0\0\0" * 2000, "1000 chunks"),
        (sound(kind="AIFF"), "neither"),
    ],
    ids=["nothing", "start", "no chunk", "text", "many chunks", "another format"],
)
def test_bytes_that_are_no_sound_are_refused(data, words):
    with pytest.raises(BadSound, match=words):
        sound_header(data)


def test_a_file_that_declares_more_than_memory_holds_is_refused():
    data = bytearray(sound(kind="FLAC"))
    bits = struct.unpack_from(">Q", data, 18)[0] | (1 << 36) - 1  # the number of samples
    struct.pack_into(">Q", data, 18, bits)
    with pytest.raises(BadSound):
        read_sound(bytes(data))


def test_damage_behind_a_whole_header_is_found_before_it_is_heard():
    flipped = bytearray(sound(5000, kind="FLAC"))
    flipped[-200] ^= 1
    assert sound_header(bytes(flipped)).num_frames == 5000
    with pytest.raises(BadSound):
        checked_header(bytes(flipped))
    not_finite = sound(300, subtype="FLOAT")[:-400] + struct.pack("<f", float("nan")) * 100
    with pytest.raises(BadSound, match="finite"):
        checked_header(not_finite)


@settings(max_examples=60)
@given(st.sampled_from(KINDS[::3]), st.integers(0, 1000), st.integers(0, 255), st.floats(0, 1))
def test_a_damaged_file_is_read_or_refused(kind, place, value, part):
    data = bytearray(sound(300, 8000, 1, *kind))
    data[place % len(data)] = value
    data = data[: int(len(data) * max(part, 0.2))]
    with contextlib.suppress(BadSound):  # any other exception fails
        read_sound(bytes(data), 100, 50)
