"""Clocks that never synchronize: host time where the device is the host, CUDA events where it is not.

A mark is a name and a time, noted; what the marks mean is worked out when somebody asks.
"""

from collections import defaultdict, deque
from time import perf_counter
from typing import NamedTuple, final

import torch

from framework.span import IDLE, Span, bucket

STEP_ENDS = "report"  # the name of a step's last mark
SKIPPED = ""
MOST_MARKS = 4096  # noted before they are worked out: some 600 steps
MOST_EVENTS = 512  # on their way through the device before those that it has passed are read


@final
class _Steps:
    """Seconds by name of the step under way, and of those before it. What a name took in one step is counted once."""

    def __init__(self) -> None:
        self.present_s: dict[str, float] = {}
        self._total_s: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, name: str, seconds: float) -> None:
        self.present_s[name] = self.present_s.get(name, 0.0) + seconds

    def end(self) -> None:
        for name, seconds in self.present_s.items():
            self._total_s[name] += seconds
            self._counts[name][bucket(seconds)] += 1
        self.present_s = {}

    def take(self) -> dict[str, Span]:
        """Every second since the last call; what there is of the step under way counts as a step."""
        self.end()
        spans = {
            name: Span(total_s, sum(self._counts[name].values()), self._counts[name]) for name, total_s in self._total_s.items()
        }
        self._total_s.clear()
        self._counts.clear()
        return spans


@final
class HostClock:
    """Seconds of host time. 0.15 us a mark, and as much again when it is worked out."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []
        self._steps = _Steps()
        self._last = perf_counter()

    def mark(self, name: str) -> None:
        marks = self._marks
        marks.append((name, perf_counter()))
        if len(marks) > MOST_MARKS:
            self._work_out()

    def skip(self) -> None:
        self.mark(SKIPPED)

    def spans(self) -> dict[str, Span]:
        self._work_out()
        return self._steps.take()

    def lap(self) -> dict[str, float]:
        return {name: span.total_s for name, span in self.spans().items()}

    def _work_out(self) -> None:
        steps, last = self._steps, self._last
        for name, now in self._marks:
            if name:
                steps.add(name, now - last)
                if name == STEP_ENDS:
                    steps.end()
            last = now
        self._last = last
        self._marks.clear()


class _Mark(NamedTuple):
    name: str
    host_s: float
    event: torch.cuda.Event


@final
class CudaClock:
    """Seconds of device time between events in the stream that was current when the step began, read when the device has passed them,
    steps later.

    Two times are told apart: ``wait`` is the host's, beside which the device may still work; ``idle`` the device's own, from its last
    work to the moment the host had the next batch. All names but ``wait`` add up to the device's time, so nothing is counted twice.
    The newest steps may be handed in one lap later.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._free: list[torch.cuda.Event] = []
        self._marks: deque[_Mark] = deque()  # whose events have not been read, oldest first
        self._steps = _Steps()
        self._last: _Mark | None = None  # the newest of those that have been
        self.skip()

    def mark(self, name: str) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._marks.append(_Mark(name, perf_counter(), event))
        if name == STEP_ENDS:
            self._stream = torch.cuda.current_stream(self._device)
            if len(self._marks) > MOST_EVENTS:
                self._work_out()

    def skip(self) -> None:
        self._stream = torch.cuda.current_stream(self._device)
        self.mark(SKIPPED)

    def spans(self) -> dict[str, Span]:
        self._work_out()
        return self._steps.take()

    def lap(self) -> dict[str, float]:
        return {name: span.total_s for name, span in self.spans().items()}

    def _work_out(self) -> None:
        """Read the events that the device has passed, and put them back into the ring."""
        marks = self._marks
        while marks and marks[0].event.query():
            mark, last = marks.popleft(), self._last
            if last is not None:
                self._count(mark, last)
                self._free.append(last.event)
            self._last = mark

    def _count(self, mark: _Mark, last: _Mark) -> None:
        if mark.name == SKIPPED:
            return
        device_s = last.event.elapsed_time(mark.event) / 1e3
        if mark.name == "wait":
            self._steps.add("wait", mark.host_s - last.host_s)
        self._steps.add(IDLE if mark.name == "wait" else mark.name, device_s)
        if mark.name == STEP_ENDS:
            self._steps.end()


@final
class NoClock:
    """A clock that is off: it knows nothing, and costs the call."""

    def mark(self, name: str) -> None:
        pass

    def skip(self) -> None:
        pass

    def spans(self) -> dict[str, Span]:
        return {}

    def lap(self) -> dict[str, float]:
        return {}


def make_clock(device: torch.device, on: bool = True) -> HostClock | CudaClock | NoClock:
    """The clock that fits the device; ``on`` False: none."""
    if not on:
        return NoClock()
    return CudaClock(device) if device.type == "cuda" else HostClock()
