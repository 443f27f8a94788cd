"""What sinks share: the numbers and pictures of a report, and the sinks that pass reports on."""

import json
import math
import os
import re
import shlex
import sys
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, final

import cv2
import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report, RunContext, Sink
from framework.errors import ResourceError, words_of
from framework.system import run_dir as files
from framework.system.durable import write_bytes, write_json

CELLS = 256  # pixels of the longer side of an array's picture
# Measuring the usage takes up to a millisecond, and its values are means over about this time.
USAGE_EVERY_S = 1.0
MOST_EVENTS = 200  # of one batch; a report of a training step has about 25 values
FIRST_PAUSE_S = 1.0  # after a failure; it doubles with every further one
LONGEST_PAUSE_S = 60.0

Event = dict[str, Any]


def values_of(report: Report) -> dict[str, float]:
    """Return means and speed as ``loss/val``, so that splits share a chart.

    A validation also has ``loss/best``, of the best validation so far; ``loss/best.NAME`` of one of
    several sets. For training, there are the learning rates, spans, stages and usage, too.
    """
    values = {f"{name}/{report.split}": value for name, value in report.means.items()}
    _, dot, own = report.split.partition(".")
    for name in report.means:
        if (key := f"{own}{dot}{name}") in report.best:
            values[f"{name}/best{dot}{own}"] = report.best[key]
    values[f"records_per_s/{report.split}"] = report.records_per_s
    if report.split != "train":
        return values
    values["lr/train"] = report.learning_rate or 0.0
    values |= {f"lr/{part}": rate for part, rate in report.rates.items()}
    for name, span in report.spans.items():
        values[f"span/{name}_s"] = span.mean_s
        values[f"span_p50/{name}_s"] = span.quantile_s(0.5)
        values[f"span_p90/{name}_s"] = span.quantile_s(0.9)
    values |= {f"stage/{name}_s": seconds for name, seconds in report.stages_s.items()}
    values |= {f"share/{name}": share for name, share in report.content.items()}
    values |= {f"usage/{name}": value for name, value in report.usage.items()}
    if report.ranks is not None:
        for name, span in report.ranks.spans.items():
            values[f"span_ranks/{name}_min_s"] = span.min_s
            values[f"span_ranks/{name}_max_s"] = span.max_s
    optional = {
        "stage/ready": report.ready,
        "usage/skipped_steps": report.skipped or None,
        "time_left/epoch_records": report.epoch_left,
        "time_left/run_s": report.left_s,
    }
    return values | {name: value for name, value in optional.items() if value is not None}


def sample_pictures(sample: Batch, count: int) -> dict[str, Tensor]:
    """Return the first records of each field of images: uint8 [count, 1 or 3, H, W] by name."""
    return {
        name: value[:count]
        for name, value in tensors(sample).items()
        if count and value.dtype == torch.uint8 and value.dim() == 4 and value.shape[1] in (1, 3)
    }


def array_pictures(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each array of one or two dimensions as a picture, uint8 [1, 1, H, W], by name.

    The largest value of each row is black, so a good confusion matrix has a dark diagonal.
    """
    pictures: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if not 1 <= array.dim() <= 2 or not array.numel():
            continue
        rows = array.nan_to_num(0.0, 0.0, 0.0).double().clamp(min=0).reshape(-1, array.shape[-1])
        shares = rows / rows.amax(1, keepdim=True).clamp(min=1e-300)
        cell = max(1, CELLS // max(rows.shape))
        shades = (255 * (1 - shares)).to(torch.uint8)
        pictures[name] = shades.repeat_interleave(cell, 0).repeat_interleave(cell, 1)[None, None]
    return pictures


def write_picture(path: Path, images: Tensor) -> None:
    """Write images, uint8 [count, 1 or 3, H, W], as one PNG file: row by row."""
    count, channels, height, width = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = np.zeros((rows * columns, channels, height, width), np.uint8)
    tiles[:count] = images.cpu().numpy()[:, ::-1]  # OpenCV's order of colors
    grid = tiles.reshape(rows, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    picture = grid.reshape(rows * height, columns * width, channels)
    write_bytes(path, cv2.imencode(".png", picture)[1].tobytes())


@final
@dataclass(eq=False)
class MeasuredSink(Sink):
    """Adds measurements to training reports, and sums them up over the run."""

    sinks: Sequence[Sink]  # where the reports go; ``close`` leaves them open
    stats: Callable[[], LoaderStats]  # how preparing batches went since the last call
    # Usage of the machine: means since the last call, and peaks so far, which are named ``peak_``.
    measure: Callable[[], Mapping[str, float]]
    step: int = 0  # of the last report
    slow: Callable[[], Mapping[str, Any]] = dict[str, Any]  # slow records, at an epoch's end
    tuning: Callable[[], Mapping[str, Any]] = dict[str, Any]  # how records are read by now

    def __post_init__(self) -> None:
        self._measured_at = time.monotonic()
        self._used: Mapping[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._value_s: dict[str, float] = defaultdict(float)  # value times seconds
        self._seconds: dict[str, float] = defaultdict(float)
        self._ready = 0.0
        self._ready_steps = 0
        self._parts: dict[str, float] = defaultdict(float)
        self._wholes: dict[str, float] = defaultdict(float)
        self.stages_s: dict[str, float] = defaultdict(float)  # thread-seconds of the whole run
        self.depth = 0  # the most batches that the loader's queue holds

    @property
    def content(self) -> dict[str, float]:
        """Shares of what the batches of the whole run held, by name."""
        return {name: self._parts[name] / whole for name, whole in self._wholes.items() if whole}

    @property
    def ready(self) -> float | None:
        """Batches that were ready when one was requested, on average over the run's steps."""
        return self._ready / self._ready_steps if self._ready_steps else None

    def usage(self) -> dict[str, float]:
        """Return the usage of the whole run up to now: means over time, and peaks."""
        self._measure()
        means = {name: self._value_s[name] / s for name, s in self._seconds.items() if s}
        return means | self._peaks

    def write(self, report: Report) -> None:
        if report.split == "train":
            num_steps = max(1, report.step - self.step)
            self.step = report.step
            stats = self.stats()
            self.depth = stats.depth
            for name, seconds in stats.stages_s.items():
                self.stages_s[name] += seconds
            for name, (part, whole) in stats.content.items():
                self._parts[name] += part
                self._wholes[name] += whole
            if stats.ready is not None:
                self._ready += stats.ready * num_steps
                self._ready_steps += num_steps
            if not self._used or time.monotonic() - self._measured_at > USAGE_EVERY_S:
                self._measure()
            report = replace(
                report,
                slow_records=self.slow() if report.epoch_left == 0 else {},
                tuning=self.tuning(),
                stages_s={name: seconds / num_steps for name, seconds in stats.stages_s.items()},
                ready=stats.ready,
                usage=self._used,
                content={name: part / all_ for name, (part, all_) in stats.content.items() if all_},
            )
        for sink in self.sinks:
            sink.write(report)

    def _measure(self) -> None:
        seconds = time.monotonic() - self._measured_at
        self._measured_at += seconds
        self._used = self.measure()
        for name, value in self._used.items():
            if name.startswith("peak_"):
                self._peaks[name] = max(value, self._peaks.get(name, 0.0))
            else:
                self._value_s[name] += value * seconds
                self._seconds[name] += seconds

    def flush(self) -> None:
        for sink in self.sinks:
            sink.flush()


@final
@dataclass(eq=False)
class TolerantSink:
    """Passes everything on, and warns once of an OSError or ResourceError, such as a full disk."""

    sink: Sink
    warn: Callable[[str], None]
    has_failed: bool = False

    def write(self, report: Report) -> None:
        self._tolerate(self.sink.write, report)

    def flush(self) -> None:
        self._tolerate(self.sink.flush)

    def close(self) -> None:
        self._tolerate(self.sink.close)

    def _tolerate(self, action: Callable[..., None], *arguments: Report) -> None:
        try:
            action(*arguments)
        except (OSError, ResourceError) as error:
            cause = error.__cause__ or error
            reason = cause.strerror if isinstance(cause, OSError) else None
            if not self.has_failed:
                self.has_failed = True
                what = f"{type(self.sink).__name__} cannot write: {reason or error}"
                self.warn(f"warning: {what}; training continues without it")


class Tracker(Protocol):
    """What sends events to a server, from one thread."""

    def send(self, events: Sequence[Event]) -> None:
        """Send events. Any exception means that they will be sent again."""

    def close(self) -> None:
        """End the connection, after the last batch."""


@final
class Outbox:
    """The events of one run for one tracking server: the run appends, and one thread sends.

    ``outbox/NAME.jsonl`` keeps every event of the run, a line each, and ``outbox/NAME.json`` how
    much of it was sent. The file is the queue, so memory stays small and a killed run loses
    nothing.

    Attributes:
        state: Plain values that are kept with the events. ``token`` names the run for the server.
        sent: How many bytes of the file were sent.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self.run_dir = run_dir
        self.name = name
        self.path = run_dir / "outbox" / f"{name}.jsonl"
        self.file: BinaryIO | None = None
        known = files.read_object(self.path.with_suffix(".json"))
        self.state: dict[str, Any] = known.get("state") or {}
        # It names a folder and is part of a query, and the file may come from another machine.
        if not re.fullmatch("[0-9a-f]{32}", str(self.state.get("token"))):
            self.state["token"] = uuid.uuid4().hex
        size = self.path.stat().st_size if self.path.exists() else 0
        self.sent = min(int(known.get("sent") or 0), size)

    def drop_after(self, step: int) -> None:
        """Cut off the events after a step, which a resumed run logs again.

        What was sent stays at the server, whose run is continued.
        """
        kept = 0
        for event, end in self._events(0):
            if event.get("step", 0) > step:
                break
            kept = end
        if kept < self.sent:
            self.sent = kept
            self.save()
        with suppress(FileNotFoundError):
            os.truncate(self.path, kept)

    def append(self, event: Event) -> None:
        if self.file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "ab")  # noqa: SIM115
            with open(self.path, "rb") as file:  # a killed run may have left a part of a line
                self.file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        self.file.write(json.dumps(files.redacted(event)).encode() + b"\n")
        self.file.flush()  # what a full disk refuses stays in the buffer, and is written later

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def send(self, tracker: Tracker) -> bool:
        """Send the next events, and return whether they were the last ones."""
        batch = list(islice(self._events(self.sent), MOST_EVENTS))
        if batch:
            tracker.send([event for event, _ in batch if event])
            self.sent = batch[-1][1]
            self.save()
        return len(batch) < MOST_EVENTS

    def num_waiting(self) -> int:
        return sum(1 for event, _ in self._events(self.sent) if event)

    def end(self, status: str, step: int, checkpoints: bool) -> None:
        """Add the last events, if missing. ``status`` is FINISHED, KILLED or FAILED."""
        last = deque(self._events(0), maxlen=1)
        if last and "end" in last[0][0]:
            return
        if checkpoints:
            self.append({"files": ["checkpoints/best.pt", "checkpoints/last.pt"], "step": step})
        self.append({"end": status, "step": step, "time_ms": time.time_ns() // 1_000_000})
        self.close()

    def save(self) -> None:
        known = {"sent": self.sent, "state": self.state}
        write_json(self.path.with_suffix(".json"), files.redacted(known))

    def _events(self, start: int) -> Iterator[tuple[Event, int]]:
        """Yield event and end of each whole line after ``start``; {} if it is damaged."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield files.parsed(line), start


@dataclass(eq=False)
class TrackedSink:
    """Writes the events of a run to an outbox, from which a thread sends them to a server.

    The run never waits for the server. What cannot be sent stays in ``run_dir/outbox``.
    """

    outbox: Outbox
    tracker: Tracker
    num_images: int  # how many records of the sample batch are drawn
    checkpoints: bool  # whether the weights are sent when the run ends
    every_s: float  # seconds between two batches, which take Python's lock for some milliseconds
    close_s: float  # seconds that the end of the run may wait for the server
    run: RunContext

    def __post_init__(self) -> None:
        outbox, run = self.outbox, self.run
        self._last_step = run.start_step
        self._failure = ""  # of the last attempt
        self._ending = threading.Event()
        outbox.state["checkpoints"] = self.checkpoints
        outbox.drop_after(run.start_step)
        outbox.save()
        config = files.newest_config(run.run_dir)
        outbox.append(
            {"begin": config.name, "step": run.start_step, "time_ms": time.time_ns() // 1_000_000}
        )
        names = files.configurations(run.run_dir)
        if not run.start_step:
            for name, images in sample_pictures(run.sample, self.num_images).items():
                names.append(f"pictures/sample-{_file_name(name)}.png")
                write_picture(run.run_dir / names[-1], images)
        outbox.append({"files": names, "step": run.start_step})
        # A daemon, so that a request without an answer cannot keep the process alive.
        self._thread = threading.Thread(target=self._send, name=f"{outbox.name} sink", daemon=True)
        self._thread.start()

    def write(self, report: Report) -> None:
        self._last_step = report.step
        event: Event = {
            "report": report.split,
            "step": report.step,
            "time_ms": time.time_ns() // 1_000_000,
        }
        self.outbox.append({**event, "values": values_of(report)})
        names: list[str] = []
        for name, picture in array_pictures(report.arrays).items():
            # A folder per step: pictures are sent later, or sent again.
            file_name = f"{_file_name(name)}-{_file_name(report.split)}.png"
            names.append(f"pictures/step-{report.step:08d}/{file_name}")
            write_picture(self.run.run_dir / names[-1], picture)
        if names:
            self.outbox.append({"files": names, "step": report.step})

    def flush(self) -> None:
        if self.outbox.file is not None:
            os.fsync(self.outbox.file.fileno())

    def close(self) -> None:
        """Add how the run ended, send the rest, and print a line if some could not be sent."""
        if self._ending.is_set():
            return
        status = "KILLED"
        if sys.exception() is not None:
            status = "FAILED"
        elif self._last_step >= self.run.total_steps or self.run.has_ended():
            status = "FINISHED"
        try:
            self.outbox.end(status, self._last_step, self.checkpoints)
        finally:
            self._ending.set()
            self._thread.join(self.close_s)
            if self._thread.is_alive() or self._failure:
                why = self._failure or f"no answer within {self.close_s:g} s"
                command = f"paceline runs send {shlex.quote(str(self.run.run_dir))}"
                if uri := self.outbox.state.get("uri"):
                    command = f"MLFLOW_TRACKING_URI={shlex.quote(uri)} {command}"
                what = f"{self.outbox.num_waiting()} events could not be sent ({why})"
                what += f"; they are kept, send them with: {command}"
                self.run.say(f"{self.outbox.name}: {what}")

    def _send(self) -> None:
        pause_s = 0.0
        failed_pause_s = FIRST_PAUSE_S
        has_warned = is_over = False
        while not is_over:
            is_ending = self._ending.wait(pause_s)
            began_at = time.monotonic()
            try:
                is_drained = self.outbox.send(self.tracker)
                self._failure = ""
                failed_pause_s = FIRST_PAUSE_S
                pause_s = self.every_s
                if not is_drained:  # half of the time is left to the run
                    pause_s = min(time.monotonic() - began_at, self.every_s)
            except Exception as error:  # noqa: BLE001  # a server may answer anything
                is_drained = True
                self._failure = reason_of(error)
                pause_s = failed_pause_s = min(2 * failed_pause_s, LONGEST_PAUSE_S)
                if not has_warned and not self._ending.is_set():
                    has_warned = True
                    what = f"{self.outbox.name} cannot be reached ({self._failure})"
                    kept = "training continues, and what it should get is kept and sent later"
                    self.run.say(f"warning: {what}; {kept}")
            is_over = is_ending and is_drained
        try:
            self.tracker.close()
        except Exception as error:  # noqa: BLE001
            self._failure = reason_of(error)


def reason_of(error: BaseException) -> str:
    """Return why a request failed, such as "Connection refused", from the first cause."""
    cause = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return words_of(error, 160)


def read_config(run_dir: Path, name: object) -> dict[str, str]:
    """Return the leaves of a configuration as texts by dotted names; {} if it cannot be read."""
    path = inside(run_dir, name)
    leaves = files.flat(files.read_object(path)) if path else {}
    return {n: leaf if isinstance(leaf, str) else json.dumps(leaf) for n, leaf in leaves.items()}


def inside(run_dir: Path, name: object) -> Path | None:
    """Return the file ``name`` of a run directory; None if there is none.

    None leads out of the directory, which may come from another machine: its files are sent.
    """
    path = run_dir / str(name)
    with suppress(OSError, ValueError):
        if path.resolve().is_relative_to(run_dir.resolve()) and path.is_file():
            return path
    return None


def _file_name(name: str) -> str:
    """Return a name for a file: a field or a metric may have any name."""
    return re.sub(r"[^\w.-]", "_", name)
