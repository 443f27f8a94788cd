"""Clocks that never synchronize: host time where the device is the host, CUDA events where it is not."""

from collections import defaultdict, deque
from time import perf_counter
from typing import final

import torch


@final
class HostClock:
    """Seconds of host time. 0.2 us a mark."""

    def __init__(self) -> None:
        self._spans_s: defaultdict[str, float] = defaultdict(float)
        self._last = perf_counter()

    def mark(self, name: str) -> None:
        now = perf_counter()
        self._spans_s[name] += now - self._last
        self._last = now

    def skip(self) -> None:
        self._last = perf_counter()

    def lap(self) -> dict[str, float]:
        spans_s, self._spans_s = dict(self._spans_s), defaultdict(float)
        return spans_s


@final
class CudaClock:
    """Seconds of device time between events in the current stream; ``wait`` is the host's, since there the device has nothing to do.

    Events are read when the device has passed them, steps later; ``lap`` hands in what is known by then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._host = device, HostClock()
        self._spans_s: defaultdict[str, float] = defaultdict(float)
        self._last = self._event()
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()

    def mark(self, name: str) -> None:
        self._host.mark(name)
        event = self._event()
        if name != "wait":
            self._pending.append((name, self._last, event))
        self._last = event

    def skip(self) -> None:
        self._host.skip()
        self._last = self._event()

    def lap(self) -> dict[str, float]:
        while self._pending and self._pending[0][2].query():
            name, start, stop = self._pending.popleft()
            self._spans_s[name] += start.elapsed_time(stop) / 1e3
        spans_s, self._spans_s = dict(self._spans_s), defaultdict(float)
        return {**spans_s, "wait": self._host.lap().get("wait", 0.0)}

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def make_clock(device: torch.device) -> HostClock | CudaClock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
