"""Page-locked memory, and freed memory that is kept: malloc's settings are for life."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from framework.contracts.batch import move, pin
from framework.system import memory
from framework.system.memory import SETTINGS, Block, LockedFiles, Pieces, empty, shared_map, use
from tests.simulated_cuda.patch import simulated
from tests.store.fuzz import in_a_process

SIZE = 100_000
HEAP = """
import ctypes, sys
from framework.system.memory import give_back_freed_memory, keep_freed_memory
kept = keep_freed_memory(of_any_size=sys.argv[1] == "any")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = \
ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def size():
    line = next(line for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
    start, stop = (int(word, 16) for word in line.split()[0].split("-"))
    return (stop - start) >> 20
places = [libc.malloc(int(sys.argv[2]) << 20) for _ in range(100 // int(sys.argv[2]))]
held = size()
for place in places:
    libc.free(place)
after = size()
give_back_freed_memory()
print(kept, held, after, size())
"""


def test_pieces_of_a_block_are_apart_and_begin_at_whole_words():
    with simulated(0):
        block = Block()
        block.take((1000,), torch.uint8)
        block.end()
        first = block.take((3,), torch.uint8).fill_(1)
        second = block.take((2, 2), torch.int64).fill_(2)
        starts = [block.start_of(piece) for piece in (first, second)]
        assert starts == [0, 256]
        assert len(block.end()) == 256 + 32
        assert (first.tolist(), second.tolist()) == ([1, 1, 1], [[2, 2], [2, 2]])


def test_a_batch_has_a_block_of_its_own():
    with simulated(0):
        block = Block()
        first = block.take((4,), torch.uint8)
        block.end()
        second = block.take((4,), torch.uint8)
        assert first.data_ptr() != second.data_ptr()
        assert block.start_of(first) is None


def test_memory_is_page_locked_in_the_threads_that_ask_for_it():
    assert not empty((2, 3), torch.uint8).is_pinned()
    use(torch.device("cpu"), pinned=False)
    result = empty((2, 3), torch.int64)
    assert (result.shape, result.dtype, result.is_pinned()) == ((2, 3), torch.int64, False)


def test_a_process_forked_from_a_thread_that_pins_does_not():
    codes = []

    def feed():
        use(torch.device("cpu"), pinned=True)
        codes.append(in_a_process(lambda: os._exit(40 + empty((2, 3), torch.uint8).is_pinned())))

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert codes == [40]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_thread_that_feeds_a_gpu_makes_batches_in_page_locked_memory():
    result = []

    def feed():
        use(torch.device("cuda", 0), pinned=True)
        item = empty((2, 3), torch.uint8)
        result.extend(
            [item.is_pinned(), pin({"image": item})["image"].data_ptr() == item.data_ptr()]
        )

    thread = threading.Thread(target=feed)
    thread.start()
    thread.join()
    assert result == [True, True]
    assert not empty((2, 3), torch.uint8).is_pinned()


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
    with pytest.raises(memory.CopyEngineError, match=r"^libcuda\.so\.1 "):
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


def _heap(sizes, each):
    """Return the heap's MiB with 100 MiB of ``each``, after freeing, after giving back."""
    clean = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-c", HEAP, sizes, str(each)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    kept, *sizes = done.stdout.split()
    if kept != "True":
        pytest.skip("no glibc here")
    return map(int, sizes)


@pytest.mark.parametrize(("sizes", "each"), [("most", 20), ("any", 50)])
def test_freed_memory_stays_for_the_next_batch(sizes, each):
    held, after, given_back = _heap(sizes, each)
    assert min(held, after) >= 100
    assert given_back < 100


def test_who_has_set_malloc_by_the_environment_is_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not memory.keep_freed_memory(of_any_size=False)
