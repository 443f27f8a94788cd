"""Clocks that never wait for the device, traces of steps, and thread-seconds of reading."""

import json
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, final

import torch
from torch.profiler import profile, record_function, schedule

from framework.contracts.loader import Clock
from framework.contracts.span import EXCHANGE, IDLE, OWN, SPANS, Span, merged
from framework.system.durable import publish

MOST_MARKS = 4096  # marks that are kept before they are counted: some 600 steps
MOST_EVENTS = 512  # marks that may wait before those whose events have happened are counted
STEP_ENDS = "report"  # the name of a step's last mark
SKIPPED = ""  # the name of a mark whose time does not count
MOST_ROWS = 512  # steps that are kept between two reports; of more, every second one is dropped
SAMPLED_EVERY = 16  # steps; on a GPU, the marks of one step cost 30 us of the host

# Of a trace (``debug=profile``).
ENDING = ".pt.trace.json"  # the ending that TensorBoard's profiler plugin looks for
UNTRACED = 4  # steps that warm up caches, untraced
WARM_UP = 2  # steps that are traced but thrown away
TRACED = 6  # steps that are kept
LEAST_STEPS = UNTRACED + WARM_UP + TRACED
ANCHOR = "paceline clock"  # an event whose time is known in both clocks

Row = tuple[float, ...]  # as in ``KnowsOwnWork.own_work``


@final
@dataclass(eq=False)
class _Steps:
    """The seconds of each span by step. Times of the same span in one step are added."""

    _seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _seen: set[str] = field(default_factory=set[str])  # names of the current step
    # Names that ``take`` has counted in the current step.
    _taken: set[str] = field(default_factory=set[str])
    _spans: dict[str, Span] = field(default_factory=dict[str, Span])

    def add(self, name: str, seconds: float) -> None:
        if name in self._seen:
            self._seconds[name][-1] += seconds
        elif name in self._taken:
            self._spans = merged(self._spans, {name: Span(seconds)})
        else:
            self._seen.add(name)
            self._seconds.setdefault(name, []).append(seconds)
        if name == STEP_ENDS:
            self.end()

    def add_marks(self, marks: Iterable[tuple[str, float]], last: float) -> float:
        """Add marks of host time after a mark at ``last``. Return the time of the newest one.

        The loop contains ``add`` and ``end``, because calls would cost time at every step.
        """
        seconds, seen, taken = self._seconds, self._seen, self._taken
        for name, now in marks:
            if name in seen:
                seconds[name][-1] += now - last
            elif name in taken:
                self.add(name, now - last)
            elif name:
                seen.add(name)
                if name in seconds:
                    seconds[name].append(now - last)
                else:
                    seconds[name] = [now - last]
            if name == STEP_ENDS:
                seen.clear()
                taken.clear()
            last = now
        return last

    def end(self) -> None:
        self._seen.clear()
        self._taken.clear()

    def fold(self) -> None:
        """Summarize the finished steps, to save memory. Keep the seconds of the current step."""
        unfinished = {name: [self._seconds[name].pop()] for name in self._seen}
        spans = {name: Span.of(seconds) for name, seconds in self._seconds.items() if seconds}
        self._spans = merged(self._spans, spans)
        self._seconds = unfinished

    def take(self) -> dict[str, Span]:
        """Return the spans since the last call.

        A span of an unfinished step counts as a step. The next call only adds its other seconds.
        """
        self._taken |= self._seen
        self._seen = set()
        self.fold()
        spans, self._spans = self._spans, {}
        return spans


@final
class OwnWork:
    """Splits the marks of the steps into own work and exchange, and keeps a row for each step.

    A row begins after the exchange of the gradients and ends after that of the next step. ``add``
    gets the name and the seconds of each piece of a span.
    """

    def __init__(self, add: Callable[[str, float], None]) -> None:
        self._add = add
        self._rows: list[Row] = []
        self._number = 0  # of the present step
        self._is_updated = False  # whether it has: a step with phases has several updates
        self._stride = 1  # every so many steps are kept
        self._own_s = dict.fromkeys(SPANS, 0.0)  # of the present row
        self._exchange_s = 0.0  # of the present row
        self._carried_s = 0.0  # own work that belongs to the next span
        self._pending_s = 0.0  # exchange since the last span

    def mark(self, name: str, took_s: float) -> None:
        if name == OWN:
            self._carried_s += took_s
        elif name == EXCHANGE:
            self._pending_s += took_s
        elif name == SKIPPED:
            self._carried_s = self._pending_s = 0.0
        else:
            if self._pending_s:
                self._add(EXCHANGE, self._pending_s)
                self._exchange_s += self._pending_s
            seconds = took_s + self._carried_s
            self._carried_s = self._pending_s = 0.0
            # the first span after the exchange of the gradients; a step with phases has several
            if name == "optimizer" and not self._is_updated:
                self._is_updated = True
                if self._exchange_s and self._number % self._stride == 0:
                    own_s = self._own_s.values()
                    self._rows.append((float(self._number), self._exchange_s, *own_s))
                    if len(self._rows) > MOST_ROWS:
                        self._stride *= 2
                        self._rows = [row for row in self._rows if row[0] % self._stride == 0]
                self._number += 1
                self._exchange_s = 0.0
                self._own_s = dict.fromkeys(SPANS, 0.0)
            elif name == STEP_ENDS:
                self._is_updated = False
            self._add(name, seconds)
            # A device's time without work is what waiting for data costs it.
            column = "wait" if name == IDLE else name
            if column in self._own_s:
                self._own_s[column] += seconds

    def take(self) -> list[Row]:
        rows = self._rows
        self._rows = []
        self._stride = 1
        return rows


class HostClock(Clock):
    """A clock of host time. A mark takes 0.11 us, and counting the mark takes as long again."""

    def __init__(self, of_rank: bool = False) -> None:
        self._marks: list[tuple[str, float]] = []
        self._steps = _Steps()
        self._of_rank = of_rank
        self._work = OwnWork(self._steps.add)
        self.own_work = self._work.take
        self._last = perf_counter()

    def mark(self, name: str) -> None:
        marks = self._marks
        marks.append((name, perf_counter()))
        if len(marks) > MOST_MARKS:
            self._count_marks()
            self._steps.fold()

    def skip(self) -> None:
        self.mark(SKIPPED)

    def spans(self) -> dict[str, Span]:
        self._count_marks()
        return self._steps.take()

    def _count_marks(self) -> None:
        if self._of_rank:
            last = self._last
            for name, now in self._marks:
                self._work.mark(name, now - last)
                last = now
            self._last = last
        else:
            self._last = self._steps.add_marks(self._marks, self._last)
        self._marks.clear()


class _Mark(NamedTuple):
    name: str
    host_s: float
    event: torch.cuda.Event
    num_steps: int = 1  # at a step's end: how many it stands for
    is_typical: bool = True  # at a step's end: whether it may stand for others


@final
class CudaClock(Clock):
    """A clock of device time, from CUDA events in the stream that was current as a step began.

    ``wait`` is the host's time, during which the device may still work. ``idle`` is the device's,
    from its last work to the moment the host had the next batch. All names but ``wait`` add up to
    the device's time. The newest steps may be reported one lap later.

    One step in ``every`` is measured, and its device times stand for those that are not. The first
    step after a lap or a skip is measured too, but stands for itself alone, as the device waited
    before it; the step after that one is measured again. The host's ``wait`` is always measured.
    With ``of_rank``, exchanges with other ranks are counted apart.
    """

    def __init__(self, device: torch.device, every: int = 1, of_rank: bool = False) -> None:
        self._device = device
        self._every = every
        self._stream = torch.cuda.current_stream(device)
        self._free: list[torch.cuda.Event] = []  # events to use again
        self._marks: deque[_Mark] = deque()  # marks whose events were not read yet, oldest first
        self._steps = _Steps()
        self._last: _Mark | None = None  # the newest that was read
        self._left = 0  # steps until one is measured; 0 in a step that is
        self._is_first = True  # whether this step, or the next measured one, follows a pause
        self._has_lapped = False  # whether the next step follows a lap
        self._has_ended = False  # whether a step has ended since the last lap
        self._host_s = 0.0  # of the newest mark in a step that is not measured
        self._waits = _Steps()  # of these steps
        self._num_unmeasured = 0  # that no measured step stands for yet
        self._spans: dict[str, Span] = {}  # of all steps, from those that were measured
        self._typical: dict[str, Span] = {}  # of the newest step that may stand for others
        self._of_rank = of_rank
        self._work = OwnWork(self._steps.add)
        self.own_work = self._work.take
        self.skip()

    def mark(self, name: str) -> None:
        ends = name == STEP_ENDS
        if self._left:
            now = perf_counter()
            if name == "wait":
                self._waits.add("wait", now - self._host_s)
            self._host_s = now
            if ends:
                self._waits.end()
                self._num_unmeasured += 1
                self._left -= 1
                if not self._left:
                    self._begin()
                self._end_step()
            return
        num_steps = 1
        if ends and not self._is_first:
            num_steps += self._num_unmeasured
            self._num_unmeasured = 0
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._marks.append(_Mark(name, perf_counter(), event, num_steps, not self._is_first))
        if len(self._marks) > MOST_EVENTS:
            self._count_marks()
            self._steps.fold()
        if ends:
            self._host_s = self._marks[-1].host_s
            self._stream = torch.cuda.current_stream(self._device)
            self._left = 0 if self._is_first else self._every - 1
            self._is_first = False
            self._end_step()

    def skip(self) -> None:
        self._is_first = True
        self._begin()

    def spans(self) -> dict[str, Span]:
        self._count_marks()
        if self._every == 1:
            return self._steps.take()
        self._has_lapped = True
        if not self._has_ended:  # who measures a loader alone marks no end
            self._spans = merged(self._spans, self._steps.take())
        self._has_ended = False
        if self._typical:
            self._add(self._typical, self._num_unmeasured)
            self._num_unmeasured = 0
        if self._left:  # measure the rest of this step: the device waits while it is reported
            self._num_unmeasured += 1
            self.skip()
        spans = merged(self._spans, self._waits.take())
        self._spans = {}
        return spans

    def _begin(self) -> None:
        self._left = 0
        self._stream = torch.cuda.current_stream(self._device)
        self.mark(SKIPPED)

    def _end_step(self) -> None:
        self._has_ended = True
        if self._has_lapped:
            self._has_lapped = False
            self._is_first = True
            if self._left:
                self._begin()

    def _count_marks(self) -> None:
        marks = self._marks
        while marks and marks[0].event.query():
            mark = marks.popleft()
            last = self._last
            self._last = mark
            if last is None:
                continue
            name = mark.name
            device_s = last.event.elapsed_time(mark.event) / 1e3 if name else 0.0
            self._free.append(last.event)
            if name == "wait":
                self._steps.add("wait", mark.host_s - last.host_s)
                name = IDLE
            if self._of_rank:
                self._work.mark(name, device_s)
            elif name:
                self._steps.add(name, device_s)
            if name == STEP_ENDS and self._every > 1:  # count the steps that it stands for, too
                step = self._steps.take()
                self._spans = merged(self._spans, {"wait": step.pop("wait", Span())})
                self._add(step, mark.num_steps)
                if mark.is_typical:
                    self._typical = step

    def _add(self, step: dict[str, Span], count: int) -> None:
        if count:
            times = {name: span.scaled(count) for name, span in step.items()}
            self._spans = merged(self._spans, times)


@final
class NoClock(Clock):
    """A clock that measures nothing."""


def make_clock(
    device: torch.device, how: bool | str = True, of_rank: bool = False
) -> HostClock | CudaClock | NoClock:
    """Return the clock for a device, or for one of several ranks.

    ``how`` is True, False for a clock that is off, or ``full`` to measure every step on a GPU, too.
    """
    if not how:
        return NoClock()
    if device.type == "cuda":
        return CudaClock(device, 1 if how == "full" else SAMPLED_EVERY, of_rank)
    return HostClock(of_rank)


@final
class ProfiledClock(Clock):
    """A clock with a tracer beside it in steps 7 to 12, which then writes the file ``path``."""

    def __init__(self, clock: Clock, path: Path) -> None:
        self.path = path
        self._clock = clock
        self._num_steps = 0
        self._last = perf_counter()
        self._anchor_s: float | None = None
        self._drawn: list[tuple[str, float, float]] = []  # name, start and end in host seconds
        if not torch.cuda.is_available():  # with CUDA, CUPTI may have something to say
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # hides even start and stop
        steps = schedule(wait=UNTRACED, warmup=WARM_UP, active=TRACED, repeat=1)
        self._tracer: profile | None = profile(
            schedule=steps, on_trace_ready=self._save, record_shapes=True
        )
        self._tracer.start()

    def mark(self, name: str) -> None:
        self._clock.mark(name)
        now = perf_counter()
        if self._anchor_s is not None:
            self._drawn.append((name, self._last, now))
        self._last = now
        if name == STEP_ENDS and self._tracer is not None:
            self._num_steps += 1
            self._tracer.step()
            if self._num_steps == UNTRACED + WARM_UP:
                self._anchor_s = perf_counter()
                with record_function(ANCHOR):
                    pass
            elif self._num_steps == LEAST_STEPS:
                self.close()
            self.skip()

    def skip(self) -> None:
        self._clock.skip()
        self._last = perf_counter()

    def spans(self) -> dict[str, Span]:
        return self._clock.spans()

    def close(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.stop()

    def _save(self, tracer: profile) -> None:
        with publish(self.path) as temporary:
            tracer.export_chrome_trace(str(temporary))
            trace = json.loads(temporary.read_text(encoding="utf-8"))
            trace["traceName"] = self.path.name
            events: list[dict[str, Any]] = trace["traceEvents"]
            anchor_us = next((event["ts"] for event in events if event.get("name") == ANCHOR), None)
            if anchor_us is not None and self._anchor_s is not None:
                track = {"pid": os.getpid(), "tid": 1}
                title = {"name": "paceline spans, in host time"}
                index = {"sort_index": -1}
                events.append({"ph": "M", "name": "thread_name", **track, "args": title})
                events.append({"ph": "M", "name": "thread_sort_index", **track, "args": index})
                kind = {"ph": "X", "cat": "user_annotation", **track}
                for name, start, end in self._drawn:  # events have microseconds
                    times = {"ts": anchor_us + 1e6 * (start - self._anchor_s)}
                    events.append({**kind, "name": name, **times, "dur": 1e6 * (end - start)})
            temporary.write_text(json.dumps(trace), encoding="utf-8")
        self._anchor_s = None


@final
@dataclass(eq=False)
class Stopwatch:
    """One thread's work on one slice of a batch. A mark takes 0.2 us."""

    stages_s: dict[str, float] = field(default_factory=dict[str, float])
    _last: float = field(default_factory=perf_counter)

    def mark(self, stage: str) -> float:
        """Count the seconds since the last mark for ``stage``, and return them."""
        now = perf_counter()
        seconds = now - self._last
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + seconds
        self._last = now
        return seconds


@final
@dataclass(eq=False)
class Stages:
    """The seconds of all batches by stage, ``sums_s``.

    One thread at a time adds to them, while another may take. Sums only grow, so that nothing is
    lost without a lock, which would cost as much as all the rest.
    """

    sums_s: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    _taken_s: dict[str, float] = field(default_factory=dict[str, float])

    def add_slices(self, slices_s: Iterable[Mapping[str, float]]) -> None:
        for stages_s in slices_s:
            for stage, seconds in stages_s.items():
                self.sums_s[stage] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, without stages that took none."""
        before_s = self._taken_s
        self._taken_s = dict(self.sums_s)
        since_s = {stage: s - before_s.get(stage, 0.0) for stage, s in self._taken_s.items()}
        return {stage: seconds for stage, seconds in since_s.items() if seconds > 0.0}
