"""``debug=profile``: trace the operators of a few steps, with our spans beside them."""

import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any, final

import torch
from torch.profiler import profile, record_function, schedule

from framework.contracts.loader import Clock
from framework.contracts.span import Span
from framework.measure.clock import STEP_ENDS
from framework.system.durable import publish

ENDING = ".pt.trace.json"  # the ending that TensorBoard's profiler plugin looks for
WAIT = 4  # steps that warm up caches, untraced
WARM_UP = 2  # steps that are traced but thrown away
TRACED = 6  # steps that are kept
LEAST_STEPS = WAIT + WARM_UP + TRACED
ANCHOR = "paceline clock"  # an event whose time is known in both clocks
QUIET = "6"  # KINETO_LOG_LEVEL that hides even start and stop
TRACK = 1  # the number of the thread that shows our spans


@final
class ProfiledClock:
    """A clock with a tracer beside it in steps 7 to 12, which then writes the file ``path``."""

    def __init__(self, clock: Clock, path: Path) -> None:
        self.path = path
        self._clock = clock
        self._num_steps = 0
        self._last = perf_counter()
        self._anchor_s: float | None = None
        self._drawn: list[tuple[str, float, float]] = []  # name, start and end in host seconds
        if not torch.cuda.is_available():  # with CUDA, CUPTI may have something to say
            os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
        steps = schedule(wait=WAIT, warmup=WARM_UP, active=TRACED, repeat=1)
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
            if self._num_steps == WAIT + WARM_UP:
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
        tracer = self._tracer
        self._tracer = None
        if tracer is not None:
            tracer.stop()

    def _save(self, tracer: profile) -> None:
        with publish(self.path) as temporary:
            tracer.export_chrome_trace(str(temporary))
            trace = json.loads(temporary.read_text(encoding="utf-8"))
            trace["traceName"] = self.path.name
            events: list[dict[str, Any]] = trace["traceEvents"]
            anchors = (event["ts"] for event in events if event.get("name") == ANCHOR)
            anchor_us = next(anchors, None)
            if anchor_us is not None and self._anchor_s is not None:
                track = {"pid": os.getpid(), "tid": TRACK}
                title = {"name": "paceline spans, in host time"}
                index = {"sort_index": -1}
                events.append({"ph": "M", "name": "thread_name", **track, "args": title})
                events.append({"ph": "M", "name": "thread_sort_index", **track, "args": index})
                kind = {"ph": "X", "cat": "user_annotation", **track}
                for name, start, end in self._drawn:  # events have microseconds
                    start_us = anchor_us + 1e6 * (start - self._anchor_s)
                    events.append(
                        {**kind, "name": name, "ts": start_us, "dur": 1e6 * (end - start)}
                    )
            temporary.write_text(json.dumps(trace), encoding="utf-8")
        self._anchor_s = None
