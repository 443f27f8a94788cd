"""Attribute host time to the lines of somebody's Python code by sampling the stack of a thread.

A second thread looks at the first one's stack every few milliseconds. Calls of torch and of
Paceline are charged to the line outside of both that made them. A sample weighs the time since the
sample before it.

Source: ``sys._current_frames()``, as in py-spy's and Austin's predecessors. The second thread needs
Python's lock, and would only see lines that release it. A short switch interval makes the first
thread release it anywhere.
"""

import linecache
import os
import sys
import sysconfig
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import NamedTuple, final

import numpy as np
import torch

import framework

INTERVAL_S = 0.002
SWITCH_S = 1e-4  # how long a thread may keep Python's lock while another one wants to sample
OURS = str(Path(framework.__file__).parent) + os.sep
TORCH = str(Path(torch.__file__).parent) + os.sep
LAYERS = str(Path(torch.nn.__file__).parent) + os.sep
STANDARD = sysconfig.get_path("stdlib") + os.sep
NUMPY = str(Path(np.__file__).parent) + os.sep
INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
DEEPEST = 200  # frames that are looked at


class CodeLine(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line as it is written; "" if its file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class SampledLine:
    """Time of one line.

    Attributes:
        place: The line.
        label: What ran, as the caller named it.
        seconds: The time in this line and in what it called.
        python_s: The part of it outside of torch's layers: in the line itself, in C code that it
            calls, or in other libraries.
    """

    place: CodeLine
    label: str
    seconds: float
    python_s: float


def charged(frame: FrameType | None) -> CodeLine | None:
    """Return the line to charge for what ``frame`` does, or None if no code of a user runs.

    It is the innermost line that belongs neither to torch nor to us. An installed library is
    charged only if no code of a user called it.
    """
    library: CodeLine | None = None
    for _ in range(DEEPEST):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            break
        if is_blamed(file):
            # Python knows no line for some instructions, such as those that close a context.
            line = frame.f_lineno or frame.f_code.co_firstlineno
            place = CodeLine(file, line, frame.f_code.co_name)
            if not file.startswith(INSTALLED):
                return place
            library = library or place
        frame = frame.f_back
    return library


def is_blamed(file: str) -> bool:
    """Return whether a file is to blame for its time, and not whoever calls it."""
    if file.startswith(INSTALLED):
        return not file.startswith((TORCH, NUMPY))
    return not file.startswith(("<", STANDARD, TORCH))


@final
class StackSampler:
    """Samples the thread that calls ``start``, until ``stop``, any number of times.

    Set ``label`` to what runs, at any time. A sample costs the sampled thread about 50 us.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.label = ""
        self.total_s = 0.0  # between starts and stops
        self._interval_s = interval_s
        self._seconds: defaultdict[tuple[str, CodeLine], float] = defaultdict(float)
        self._python_s: defaultdict[tuple[str, CodeLine], float] = defaultdict(float)
        self._thread: threading.Thread | None = None
        self._is_done = threading.Event()
        self._switch_s = 0.0

    def start(self) -> None:
        assert self._thread is None, "it samples already"
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._switch_s))
        self._is_done.clear()
        sampled = threading.get_ident()
        self._thread = threading.Thread(target=self._run, args=(sampled,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling. Stopping twice is harmless."""
        if self._thread is None:
            return
        self._is_done.set()
        self._thread.join()
        self._thread = None
        sys.setswitchinterval(self._switch_s)

    def lines(self) -> list[SampledLine]:
        """Return all lines, those with the most time first."""
        lines = [
            SampledLine(place, label, seconds, self._python_s[label, place])
            for (label, place), seconds in self._seconds.items()
        ]
        return sorted(lines, key=lambda line: -line.seconds)

    def _run(self, sampled: int) -> None:
        last_s = perf_counter()
        while not self._is_done.wait(self._interval_s):
            frame = sys._current_frames().get(sampled)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
            now_s = perf_counter()
            self._count(frame, now_s - last_s)
            last_s = now_s
        self.total_s += perf_counter() - last_s

    def _count(self, frame: FrameType | None, passed_s: float) -> None:
        self.total_s += passed_s
        place = charged(frame)
        if place is None or frame is None:
            return
        self._seconds[self.label, place] += passed_s
        if not frame.f_code.co_filename.startswith((LAYERS, OURS)):
            self._python_s[self.label, place] += passed_s
