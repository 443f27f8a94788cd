"""Attribute host time to the lines of a user's Python code by sampling the stack of a thread.

A sample weighs the time since the one before. The sampling thread needs Python's lock: a short
switch interval makes the other release it anywhere.
"""

import linecache
import os
import sys
import sysconfig
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
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
    file: str
    line: int
    function: str


@dataclass(frozen=True)
class PythonLine:
    """A line of the user's Python that takes time."""

    part: str  # model, objective, augment or transform; of a script: step or items
    file: str
    line: int
    function: str
    text: str  # the line of code; "" if its file cannot be read
    share: float  # of the time of a step or of a record


def charged(frame: FrameType | None) -> CodeLine | None:
    """Return the innermost line of the user, or else of an installed library; None without one."""
    library: CodeLine | None = None
    for _ in range(DEEPEST):
        if frame is None or frame.f_code.co_filename.startswith(OURS):
            break
        file = frame.f_code.co_filename
        is_installed = file.startswith(INSTALLED)
        # Others are charged to their caller.
        blameless = (TORCH, NUMPY) if is_installed else ("<", STANDARD, TORCH)
        if not file.startswith(blameless):
            # Python knows no line for some instructions, such as those that close a context.
            line = frame.f_lineno or frame.f_code.co_firstlineno
            place = CodeLine(file, line, frame.f_code.co_name)
            if not is_installed:
                return place
            library = library or place
        frame = frame.f_back
    return library


@final
@dataclass(eq=False)
class StackSampler:
    """Samples the thread that calls ``start``, until ``stop``, any number of times.

    Set ``label`` to what runs, at any time. A sample costs the sampled thread about 50 us.
    """

    label: str = ""
    total_s: float = 0.0  # between starts and stops
    # By label and line, outside of torch's layers: in the line itself, in C, or in libraries.
    _python_s: defaultdict[tuple[str, CodeLine], float] = field(
        default_factory=partial(defaultdict, float)
    )
    _labeled_s: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    _since_s: float = field(default_factory=perf_counter)
    _thread: threading.Thread | None = None
    _is_done: threading.Event = field(default_factory=threading.Event)
    _switch_s: float = 0.0

    def switch(self, label: str) -> None:
        now_s = perf_counter()
        self._labeled_s[self.label] += now_s - self._since_s
        self.label = label
        self._since_s = now_s

    def take(self) -> defaultdict[str, float]:
        """Return the seconds of each label since the last call, sampled or not."""
        self.switch(self.label)
        labeled_s = self._labeled_s
        self._labeled_s = defaultdict(float)
        return labeled_s

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

    def python_s(self) -> defaultdict[str, float]:
        """Return the seconds of all lines by label, outside of torch's layers."""
        seconds: defaultdict[str, float] = defaultdict(float)
        for (label, _), python_s in [*self._python_s.items()]:
            seconds[label] += python_s
        return seconds

    def largest_lines(self, label: str, most: int, least_share: float) -> list[PythonLine]:
        """Return at most ``most`` lines of ``label`` with a larger share, the largest first."""
        lines: list[PythonLine] = []
        for (part, place), python_s in [*self._python_s.items()]:
            share = python_s / max(self.total_s, 1e-9)
            if part == label and share > least_share:
                text = linecache.getline(place.file, place.line).strip()
                lines.append(PythonLine(label, *place, text, share))
        return sorted(lines, key=lambda line: -line.share)[:most]

    def _run(self, sampled: int) -> None:
        last_s = perf_counter()
        while not self._is_done.wait(INTERVAL_S):
            frame = sys._current_frames().get(sampled)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
            now_s = perf_counter()
            passed_s = now_s - last_s
            last_s = now_s
            self.total_s += passed_s
            place = charged(frame)
            if place is None or frame is None:
                continue
            if not frame.f_code.co_filename.startswith((LAYERS, OURS)):
                self._python_s[self.label, place] += passed_s
        self.total_s += perf_counter() - last_s
