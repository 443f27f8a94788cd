"""Streams, events, the two allocators, and the adversary that schedules the streams.

Source:
    torch's CUDACachingAllocator and CachingHostAllocator, and "CUDA semantics" in torch's notes.
"""

import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

ROUND = 512  # bytes; torch rounds what it is asked for
OP_S = 10e-6  # device time of a kernel, plus its share of the bandwidth below
BYTES_PER_S = 20e9


class Stream:
    """Work in order. Other streams work whenever the adversary lets them."""

    def __init__(self, device: "Device") -> None:
        self.device = device
        self.queue: deque[tuple] = deque()
        self.capture: Graph | None = None
        self.cuda_stream = len(device.streams)  # its handle; 0 is that of the default stream
        device.streams.append(self)

    def run(self, work: Callable[[], None], seconds: float = OP_S) -> None:
        if self.capture is not None:
            self.capture.works.append((work, seconds))
            return
        self._queue("run", work, seconds)

    def record_event(self, event: "Event") -> None:
        event.number += 1
        self._queue("record", event, event.number)

    def wait_event(self, event: "Event") -> None:
        self._queue("wait", event, event.number)

    def wait_stream(self, stream: "Stream") -> None:
        event = Event(self.device)
        stream.record_event(event)
        self.wait_event(event)

    def synchronize(self) -> None:
        if self.capture is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.device.num_synchronized += 1
        self.device.until(lambda: not self.queue)

    def query(self) -> bool:
        self.device.chaos()
        return not self.queue

    def _queue(self, *work: Any) -> None:
        with self.device.lock:
            self.queue.append(work)
            self.device.chaos()

    def is_able(self) -> bool:
        """Return whether the first work in the queue may begin."""
        if not self.queue:
            return False
        kind, event, number = self.queue[0]
        return kind != "wait" or event.done >= number

    def step(self) -> None:
        """Do the first work in the queue."""
        kind, what, value = self.queue.popleft()
        if kind == "run":
            self.device.time_s += value
            what()
        elif kind == "record":
            what.done = max(what.done, value)
            what.time_s = self.device.time_s


class Event:
    """A place in a stream's queue, at its newest ``record``."""

    def __init__(self, device: "Device") -> None:
        self.device = device
        self.number = 0
        self.done = 0
        self.time_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        (stream or self.device.current).record_event(self)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.device.current).wait_event(self)

    def query(self) -> bool:
        self.device.chaos()
        return self.done >= self.number

    def synchronize(self) -> None:
        self.device.until(lambda: self.done >= self.number)

    def elapsed_time(self, end: "Event") -> float:
        assert self.done >= self.number, "the first event is not done"
        assert end.done >= end.number, "the second event is not done"
        return (end.time_s - self.time_s) * 1e3


class Graph:
    """Work that was captured, with a memory pool of its own."""

    def __init__(self, device: "Device") -> None:
        self.device = device
        self.works: list[tuple[Callable[[], None], float]] = []

    def replay(self) -> None:
        stream = self.device.current
        for work, seconds in self.works:
            stream.run(work, seconds)


class Block:
    """Memory of the device."""

    def __init__(self, pool: object, size: int) -> None:
        self.pool = pool  # the stream or the graph that allocated it
        self.size = size
        self.bytes = torch.full((size,), 0xA5, dtype=torch.uint8)
        self.users: set[Stream] = set()


class Cache:
    """Freed memory by a key, which is used again after certain events."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Any]] = defaultdict(list)
        self._limbo: list[tuple[Any, Any, list[Event]]] = []
        self.num_blocks = 0

    def take(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return memory that is free, or new memory."""
        limbo, self._limbo = self._limbo, []
        for entry in limbo:
            if all(event.query() for event in entry[2]):
                self._free[entry[0]].append(entry[1])
            else:
                self._limbo.append(entry)
        if self._free[key]:
            return self._free[key].pop()
        self.num_blocks += 1
        return make()

    def give(self, key: Any, memory: Any, events: list[Event]) -> None:
        """Take memory back, which is free at once if there are no events."""
        if events:
            self._limbo.append((key, memory, events))
        else:
            self._free[key].append(memory)


class DeviceAllocator(Cache):
    """Caches blocks by stream and size; recorded streams delay the use of freed ones."""

    def __init__(self, device: "Device") -> None:
        super().__init__()
        self._device = device

    def take_block(self, num_bytes: int) -> Block:
        size = max(1, -(-num_bytes // ROUND)) * ROUND
        stream = self._device.current
        pool = stream.capture or stream
        return self.take((pool, size), lambda: Block(pool, size))

    def give_block(self, block: Block) -> None:
        streams = block.users - {block.pool}
        block.users = set()
        events: list[Event] = []
        for stream in sorted(streams, key=self._device.streams.index):
            events.append(Event(self._device))
            stream.record_event(events[-1])
        self.give((block.pool, block.size), block, events)


class _Pages(np.ndarray):
    """Page-locked memory. It tells the allocator when no tensor uses it any more."""


class PinnedAllocator(Cache):
    """Caches page-locked memory by powers of two; copies that are queued delay its use."""

    def __init__(self, device: "Device") -> None:
        super().__init__()
        self._device = device
        self._used: dict[int, list[Event]] = {}  # by address, of memory that is handed out

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        size = max(ROUND, 1 << (max(1, num_bytes) - 1).bit_length())
        raw = self.take(size, lambda: np.full(size, 0xA5, np.uint8))
        pages = raw.view(_Pages)
        self._used[raw.ctypes.data] = []
        weakref.finalize(pages, self._give_pages, raw).atexit = False
        return torch.from_numpy(pages)[:num_bytes].view(dtype).view(shape)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """Return the address of the page-locked memory that a host tensor lies in."""
        address = tensor.untyped_storage().data_ptr()
        return address if address in self._used else None

    def record(self, address: int, stream: Stream) -> None:
        """Remember that a copy was queued on ``stream``."""
        event = Event(self._device)
        stream.record_event(event)
        self._used[address].append(event)

    def _give_pages(self, raw: np.ndarray) -> None:
        self.give(len(raw), raw, self._used.pop(raw.ctypes.data))


class Device:
    """The device, with a schedule that depends on ``seed`` alone.

    Attributes:
        current: The stream that this host thread queues work on.
        num_synchronized: How often the host has waited for a whole stream or the device.
        time_s: Device time. It passes while a stream works.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lock = threading.RLock()
        self.streams: list[Stream] = []
        self.default = Stream(self)
        self.time_s = 0.0
        self.num_synchronized = 0
        self.num_pools = 0  # of graphs whose capture failed
        self.allocator = DeviceAllocator(self)
        self.pinned = PinnedAllocator(self)
        self.driver: Any = None  # see ``driver.Driver``
        self._current = threading.local()
        self._starved = self.draw.choice([None, 0, 1, 2])
        self._pace = self.draw.choice([(0,), (0, 0, 0, 1), (0, 1, 2, 5), (3, 10)])
        self._runs = False

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.default)

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Make a stream the current one of this host thread."""
        before = self.current
        if stream is not None:
            self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def set_stream(self, stream: Stream) -> None:
        self._current.stream = stream

    def chaos(self) -> None:
        """Let streams work for a moment. One of them is starved, and others run ahead."""
        with self.lock:
            for _ in range(self.draw.choice(self._pace)):
                able = [stream for stream in self.streams if self._may_work(stream)]
                if not able or self._runs:
                    return
                self._work(self.draw.choice(able))

    def until(self, is_done: Callable[[], bool]) -> None:
        """Let streams work, in any order, until something is done."""
        with self.lock:
            while not is_done():
                able = [stream for stream in self.streams if stream.is_able()]
                assert able, "deadlock: no stream can continue"
                self._work(self.draw.choice(able))

    def synchronize(self) -> None:
        self.num_synchronized += 1
        self.until(lambda: not any(stream.queue for stream in self.streams))

    def _may_work(self, stream: Stream) -> bool:
        is_starved = self.streams.index(stream) == self._starved
        return stream.is_able() and not (is_starved and self.draw.random() > 0.03)

    def _work(self, stream: Stream) -> None:
        # freed tensors queue events: what is done inside a work must not begin another
        runs = self._runs
        self._runs = True
        try:
            stream.step()
        finally:
            self._runs = runs
