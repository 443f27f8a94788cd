import contextlib
import io
import resource
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.media import sound_video


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
    whole = sound_video.read_sound(data)
    assert sound_video.is_sound(data)
    assert sound_video.sound_header(data) == (8000, channels, 5000)
    assert np.array_equal(whole, soundfile.read(io.BytesIO(data), dtype="float32")[0])
    assert np.array_equal(sound_video.read_sound(data, 4100, 300), whole[4100:4400])


@every
def test_another_rate_keeps_the_tone_and_gives_the_same_bytes_each_time(kind, subtype):
    file = sound(8000, 8000, kind=kind, subtype=subtype)
    data = sound_video.resampled(file, 16000)
    assert sound_video.sound_header(data)[::2] == (16000, 16000)
    expected = 0.5 * np.sin(2 * np.pi * 100 * np.arange(16000) / 16000)
    assert np.abs(sound_video.read_sound(data) - expected)[200:-200].max() < 1e-3
    assert sound_video.resampled(data, 16000) == data
    assert sound_video.resampled(file, 16000) == data


@every
def test_a_truncated_file_is_never_a_shorter_sound(kind, subtype):
    data = sound(300, 8000, 1, kind, subtype)
    for size in range(0, len(data) - (len(data) % 2), 3):
        with pytest.raises(sound_video.BadSound):
            sound_video.checked_header(data[:size])
        with pytest.raises(sound_video.BadSound):
            sound_video.read_sound(data[:size])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((b"", None), (b"RIFF", None), (b"RIFF\0\0\0\0WAVE", None), (b"no sound at all", None)),
        (sound(300)[:12] + b"junk\0\0\0\0" * 2000, "1000 chunks"),
        (sound(kind="AIFF"), "neither"),
    ],
    ids=["nothing", "start", "no chunk", "text", "many chunks", "another format"],
)
def test_bytes_that_are_no_sound_are_refused(data, words):
    with pytest.raises(sound_video.BadSound, match=words):
        sound_video.sound_header(data)


def test_a_file_that_declares_more_than_memory_holds_is_refused():
    data = bytearray(sound(kind="FLAC"))
    bits = struct.unpack_from(">Q", data, 18)[0] | (1 << 36) - 1  # the number of samples
    struct.pack_into(">Q", data, 18, bits)
    with pytest.raises(sound_video.BadSound):
        sound_video.read_sound(bytes(data))


def test_damage_behind_a_whole_header_is_found_before_it_is_heard():
    flipped = bytearray(sound(5000, kind="FLAC"))
    flipped[-200] ^= 1
    assert sound_video.sound_header(bytes(flipped)).num_frames == 5000
    with pytest.raises(sound_video.BadSound):
        sound_video.checked_header(bytes(flipped))
    not_finite = sound(300, subtype="FLOAT")[:-400] + struct.pack("<f", float("nan")) * 100
    with pytest.raises(sound_video.BadSound, match="finite"):
        sound_video.checked_header(not_finite)


@settings(max_examples=60)
@given(st.sampled_from(KINDS[::3]), st.integers(0, 1000), st.integers(0, 255), st.floats(0, 1))
def test_a_damaged_file_is_read_or_refused(kind, place, value, part):
    data = bytearray(sound(300, 8000, 1, *kind))
    data[place % len(data)] = value
    data = data[: int(len(data) * max(part, 0.2))]
    with contextlib.suppress(sound_video.BadSound):  # any other exception fails
        sound_video.read_sound(bytes(data), 100, 50)


STEP = 8  # levels between a frame and the next one
LEFT_IS_BRIGHT = 40  # levels that the left half is brighter
FORMATS = [
    *(("mp4", "libx264"), ("mp4", "mpeg4"), ("mov", "mjpeg"), ("matroska", "libx264")),
    *(("webm", "libvpx-vp9"), ("avi", "mpeg4"), ("mpeg", "mpeg1video")),
]
MOST = 1 << 20


def video(count=12, size=(32, 48), rate=25, form="mp4", codec="libx264", times=None):
    """Return a file of PyAV: frame i has level 8 * i, 40 more at the left, at ``times[i]``."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = size
        stream.bit_rate = 8_000_000  # so that the levels stay
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(count):
            pixels = np.full((*size, 3), STEP * number, np.uint8)
            pixels[:, : size[1] // 2] += LEFT_IS_BRIGHT
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def numbers_of(frames):
    """Return the number of each frame of ``video``, read from the level of its right half."""
    return [round(float(frame[:, frame.shape[1] // 2 + 4 :].mean()) / STEP) for frame in frames]


def frames(data, rate=None, max_pixels=MOST):
    return list(sound_video.video_frames(data, rate, max_pixels))


DATA = {(form, codec): video(20, form=form, codec=codec) for form, codec in FORMATS}


@pytest.mark.parametrize(("form", "codec"), FORMATS)
def test_frames_come_in_order_and_at_a_rate_those_that_are_shown_at_each_tick(form, codec):
    data = DATA[form, codec]
    decoded = frames(data)
    assert sound_video.video_format(data)
    assert numbers_of(decoded) == list(range(20))
    assert {(frame.shape, frame.dtype.name) for frame in decoded} == {((32, 48, 3), "uint8")}
    assert numbers_of(frames(data, Fraction(25))) == list(range(20))
    assert numbers_of(frames(data, Fraction(10))) == [0, 2, 5, 7, 10, 12, 15, 17]
    assert numbers_of(frames(data, Fraction(1, 2))) == [0]


def test_a_higher_rate_repeats_frames_and_a_variable_one_follows_their_times():
    assert numbers_of(frames(video(3), Fraction(50))) == [0, 0, 1, 1, 2, 2]
    data = video(4, rate=10, times=[0, 1, 5, 6])
    assert numbers_of(frames(data)) == [0, 1, 2, 3]
    assert numbers_of(frames(data, Fraction(10))) == [0, 1, 1, 1, 1, 2, 3]


def _rotated(data, matrix):
    """Return the file with another display matrix of 16.16 numbers in its track header."""
    at = data.index(b"tkhd") + 4 + 40
    return data[:at] + struct.pack(">9i", *matrix) + data[at + 36 :]


ONE, LAST = 1 << 16, 1 << 30
CLOCKWISE = (0, ONE, 0, -ONE, 0, 0, 0, 0, LAST)
UPSIDE_DOWN = (-ONE, 0, 0, 0, -ONE, 0, 0, 0, LAST)


def test_frames_are_turned_upright():
    upright = frames(video(2))[1].astype(int)
    turned = frames(_rotated(video(2), CLOCKWISE))[1]
    assert turned.shape == (48, 32, 3)
    assert turned[:10].mean() > turned[-10:].mean() + 20  # what was left is now above
    assert np.array_equal(turned, np.rot90(upright, -1))
    assert np.array_equal(frames(_rotated(video(2), UPSIDE_DOWN))[1], np.rot90(upright, 2))


def test_bytes_that_are_no_video_are_refused():
    for data in (b"", b"RIFF", b"a text, not a video", bytes(1000), video()[4:]):
        assert not sound_video.video_format(data)
        with pytest.raises(sound_video.BadVideo, match="known format"):
            frames(data)
    assert not sound_video.video_format(
        b"\0\0\0\x1cftypavif" + bytes(100)
    )  # an image in the same container


def _with_index_first(data):
    """Return the same frames in an MP4 file whose index precedes them, as in files for the web."""
    options = {"movflags": "faststart"}
    with av.open(io.BytesIO(data)) as old, av.open("first.mp4", "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return Path("first.mp4").read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        *(pytest.param(DATA[kind], id=kind[0]) for kind in (FORMATS[0], *FORMATS[3:6])),
        pytest.param(None, id="mp4, index first"),
    ],
)
def test_a_truncated_file_is_refused(data):
    if data is None:
        data = _with_index_first(video(30))
        assert data.index(b"moov") < data.index(b"mdat")
        assert len(frames(data)) == 30
    for share in (0.01, 0.3, 0.6, 0.8):
        with pytest.raises(sound_video.BadVideo):
            frames(data[: int(share * len(data))])


def test_large_frames_are_refused_before_they_are_decoded():
    with pytest.raises(
        sound_video.BadVideo, match=r"32 x 48 pixels are more than 100, which pack\.max_pixels"
    ):
        frames(video(), max_pixels=100)


@pytest.mark.parametrize("side", [3000, 60_000])
def test_a_large_size_that_a_frame_declares_takes_no_memory(side):
    data = video(form="mov", codec="mjpeg")
    at = data.index(b"\xff\xc0") + 5  # height and width of the first JPEG
    hostile = data[:at] + struct.pack(">HH", side, side) + data[at + 4 :]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(sound_video.BadVideo):
        frames(hostile)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB


def test_another_size_within_a_file_is_refused():
    first, second = (
        video(5, size, form="mpeg", codec="mpeg1video") for size in ((32, 48), (48, 32))
    )
    with pytest.raises(sound_video.BadVideo, match="a frame is 48 x 32, those before it 32 x 48"):
        frames(first + second)


def test_a_gap_in_time_does_not_make_frames_without_end(monkeypatch):
    monkeypatch.setattr("framework.media.sound_video.MOST_FRAMES", 1000)
    data = video(3, form="matroska", times=[0, 1, 10_000_000])
    assert len(frames(data)) == 3
    with pytest.raises(sound_video.BadVideo, match="more than 1,000 frames"):
        frames(data, Fraction(25))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FORMATS), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1)
)
def test_a_damaged_file_gives_frames_or_an_error(kind, flips):
    data = bytearray(DATA[kind])
    for place, bit in flips:
        data[int(place * (len(data) - 1))] ^= 1 << bit
    try:
        decoded = frames(bytes(data))
    except sound_video.BadVideo:
        return
    assert len({frame.shape for frame in decoded}) == 1


FILES = [b"first", b"", b"the third"]
RAW = Field("uint8", (None, 2, 4, 3), "frames")


def test_files_are_read_as_they_were_joined_without_copies():
    data = bytearray(sound_video.joined_files(FILES))
    read = sound_video.FrameFiles(data)
    assert sound_video.holds_files(bytes(data))
    assert [bytes(file) for file in read] == FILES
    assert (len(read), bytes(read[2])) == (3, b"the third")
    with pytest.raises(IndexError):
        _ = read[-1]
    data[data.index(b"first")] = ord("b")
    assert bytes(read[0]) == b"birst"


def test_a_truncated_value_and_a_hostile_index_are_refused():
    data = sound_video.joined_files(FILES)
    indices = [24, 2**64 - 1], [2**63, 5], [16], [24, 20], [24, 23], [25, 40, 41], []
    hostile = [sound_video.MAGIC + np.array(index, np.uint64).tobytes() for index in indices]
    for value in (*(data[:stop] for stop in range(len(data))), *hostile):
        with pytest.raises(sound_video.BadFrames):
            sound_video.FrameFiles(value)


def test_raw_frames_are_a_view_and_the_field_tells_the_form_of_frames():
    pixels = np.arange(48, dtype=np.uint8).reshape(2, 2, 4, 3)
    assert np.array_equal(sound_video.frames_of(pixels.tobytes(), RAW), pixels)
    for size in (0, 1, 47):
        with pytest.raises(sound_video.BadFrames, match=f"{size} bytes"):
            sound_video.frames_of(bytes(size), RAW)
    field = Field("uint8", (None, None, None, 3), "frames")
    assert isinstance(
        sound_video.frames_of(sound_video.joined_files(FILES), field), sound_video.FrameFiles
    )
    assert (field.kind, field.frame) == ("video", Field("uint8", (3, None, None), "image"))
    assert RAW.frame == Field("uint8", (2, 4, 3))
