import numpy as np
import pytest

from framework.contracts.records import Field
from framework.media.frame_files import (
    MAGIC,
    BadFrames,
    FrameFiles,
    frames_of,
    holds_files,
    joined_files,
)

FILES = [b"first", b"", b"the third"]
RAW = Field("uint8", (None, 2, 4, 3), "frames")


def test_files_are_read_as_they_were_joined_without_copies():
    data = bytearray(joined_files(FILES))
    read = FrameFiles(data)
    assert holds_files(bytes(data))
    assert [bytes(file) for file in read] == FILES
    assert (len(read), bytes(read[2])) == (3, b"the third")
    with pytest.raises(IndexError):
        _ = read[-1]
    data[data.index(b"first")] = ord("b")
    assert bytes(read[0]) == b"birst"


def test_a_truncated_value_and_a_hostile_index_are_refused():
    data = joined_files(FILES)
    indices = [24, 2**64 - 1], [2**63, 5], [16], [24, 20], [24, 23], [25, 40, 41], []
    hostile = [MAGIC + np.array(index, np.uint64).tobytes() for index in indices]
    for value in (*(data[:stop] for stop in range(len(data))), *hostile):
        with pytest.raises(BadFrames):
            FrameFiles(value)


def test_raw_frames_are_a_view():
    pixels = np.arange(48, dtype=np.uint8).reshape(2, 2, 4, 3)
    assert np.array_equal(frames_of(pixels.tobytes(), RAW), pixels)
    for size in (0, 1, 47):
        with pytest.raises(BadFrames, match=f"{size} bytes"):
            frames_of(bytes(size), RAW)


def test_the_field_tells_the_form_of_the_frames():
    field = Field("uint8", (None, None, None, 3), "frames")
    assert isinstance(frames_of(joined_files(FILES), field), FrameFiles)
    assert (field.kind, field.frame) == ("video", Field("uint8", (3, None, None), "image"))
    assert RAW.frame == Field("uint8", (2, 4, 3))
