import ctypes
import mmap
import os
import time

import pytest
import torch

from framework.contracts.batch import move
from framework.system.copy_engine import CopyEngineError, LockedFiles, Pieces, shared_map

SIZE = 100_000


@pytest.fixture
def paths():
    """Yield the paths of two files of random bytes in memory."""
    names = [f"/dev/shm/paceline-test-{os.getpid()}-{number}" for number in range(2)]
    for name in names:
        with open(name, "wb") as file:
            file.write(os.urandom(SIZE))
    yield names
    for name in names:
        os.remove(name)


def bytes_at(path, start, size):
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(size)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_a_driver_the_reason_is_one_line(paths, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # asks for a device that is not here
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    with pytest.raises(CopyEngineError, match=r"^libcuda\.so\.1 "):
        LockedFiles(paths, torch.device("cuda", 0))


def test_a_map_that_is_locked_leaves_the_time_of_its_file(paths):
    before = os.stat(paths[0]).st_mtime_ns
    time.sleep(0.05)  # more than a tick of the clock that files get their times from
    array = shared_map(paths[0])
    view = (ctypes.c_char * SIZE).from_address(array.ctypes.data)
    for start in range(0, SIZE, mmap.PAGESIZE):
        view[start] = 0  # what locking asks of the page tables
    assert bytes_at(paths[0], 0, 1) == b"\0"
    assert os.stat(paths[0]).st_mtime_ns == before


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("size", [1, 3, 40_000])
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_pieces_of_several_files_arrive_in_order(paths, size, own_stream):
    device = torch.device("cuda", 0)
    files = LockedFiles(paths, device)
    chosen = [(1, 7), (0, 0), (1, SIZE - size), (0, 50_001), (0, 50_001)]
    addresses = torch.tensor([int(files.starts[file]) + start for file, start in chosen])
    pieces = Pieces(addresses, (size,), torch.uint8, files.maps)
    stream = torch.cuda.Stream(device) if own_stream else torch.cuda.default_stream(device)
    with torch.cuda.stream(stream):
        values = move({"image": pieces}, device)["image"]
        values.add_(1).sub_(1)  # in this stream, so that it must have waited
    stream.synchronize()
    expected = [bytes_at(paths[file], start, size) for file, start in chosen]
    assert [row.numpy().tobytes() for row in values.cpu()] == expected
    files.close()
