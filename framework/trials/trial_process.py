"""Measure settings in processes of their own, which may fail or run out of memory."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from statistics import fmean
from typing import IO, Any, NamedTuple, final

import numpy as np

from framework.errors import PacelineError, ResourceError, error_kinds
from framework.measure.host import available_memory_bytes, spare_bytes
from framework.system.stopping import grace_period

Config = dict[str, Any]
MODULE = "framework.trials.measure_setting"
COMMAND = (sys.executable, "-m", MODULE)
OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
START_S = 120.0  # for a process to import torch
END_S = 10  # how long a process may take to clean up
LOOK_S = 0.05  # how often memory is checked; a core writes about 100 MB in this time


@dataclass(frozen=True)
class TrialSetting:
    """A configuration to measure, and its name in messages."""

    name: str
    config: Config  # plain and resolved values
    allowed: tuple[str, ...] = ()  # the user's packages


class ReadFacts(NamedTuple):
    """How a setting reads."""

    num_cores: int  # that it may use
    cuda: bool  # whether it trains on a GPU
    decodes: bool  # whether reading does more than copy
    kinds: tuple[str, ...]  # of workers that the source can use: thread, process
    num_workers: int  # after null has been resolved
    num_records: int = 0  # of an epoch


@dataclass(frozen=True)
class Measured:
    """The figures of a measurement, or why there are none."""

    windows: tuple[float, ...] = ()  # records per second in each
    spans_s: dict[str, float] = field(default_factory=dict)  # seconds per step of each span
    step_s: float = 0.0  # wall seconds per step, including the first
    peak_bytes: int = 0  # of the host's memory, or of the GPU's on CUDA
    yardstick_per_s: float = 0.0  # how fast the machine itself was; 0 if it was not asked
    error: PacelineError | None = None  # R185 if the reason is unforeseen
    lacks_memory: bool = False  # whether this is the reason
    is_late: bool = False  # whether the reason is that steps take too long

    @property
    def records_per_s(self) -> float:
        """The mean of the windows, which have the same length."""
        return fmean(self.windows)


@final
@dataclass(eq=False)
class TrialProcess:
    """A process that measures settings, one after another; a new one after each failure.

    With a ``limit`` of memory, in bytes or ``free`` for what the host has less a spare, the process
    is also ended before it uses up the machine's memory.
    """

    limit: int | str | None = None
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    _errors: IO[str] | None = field(default=None, init=False)

    def facts(self, setting: TrialSetting) -> ReadFacts:
        """Return how ``setting`` reads. Raise what a run would raise that cannot even start."""
        answer = self._ask(setting, {"what": "facts", "seconds": 0.0, "burn_in": 0.0, "epoch": 0})
        if "num_cores" not in answer:
            self.close()
            raise _error_of(answer, setting.name)
        answer["kinds"] = tuple(answer["kinds"])
        return ReadFacts(**answer)

    def measure(
        self,
        setting: TrialSetting,
        what: str,
        seconds: float,
        burn_in_s: float,
        epoch: int = 0,
        limit_s: float = math.inf,
    ) -> Measured:
        """Measure a setting once, until it fails after ``limit_s``.

        ``what`` is train, loader, host, compute, or visit for few training steps. Another ``epoch``
        does not repeat the records just read.
        """
        times = {"seconds": seconds, "burn_in": burn_in_s, "epoch": epoch}
        answer = self._ask(setting, {"what": what, **times}, limit_s)
        if "windows" in answer:
            answer["windows"] = tuple(answer["windows"])
            return Measured(**answer)
        self.close()
        return Measured(
            error=_error_of(answer, setting.name),
            lacks_memory=answer.get("memory", False),
            is_late=answer.get("late", False),
        )

    def close(self) -> None:
        """End the process, which leaves when its input ends."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self._end(END_S)

    def _ask(
        self, setting: TrialSetting, request: dict[str, Any], limit_s: float = math.inf
    ) -> dict[str, Any]:
        limit = None
        process = self.process
        if process is None:
            limit = self.limit
            limit_s += START_S
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # see _end
            process = self.process = subprocess.Popen(  # noqa: S603  # our own module
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={name: value for name, value in os.environ.items() if name not in OF_LAUNCHER},
                start_new_session=True,  # which Ctrl-C does not reach
            )
        assert process.stdin is not None
        assert process.stdout is not None
        request = {**request, "config": setting.config, "allowed": setting.allowed, "limit": limit}
        try:
            with grace_period(process.pid):
                with suppress(BrokenPipeError):  # the process has died, which its answer will say
                    process.stdin.write(json.dumps(request) + "\n")
                    process.stdin.flush()
                failure = self._wait(process.stdout, time.monotonic() + limit_s)
        except BaseException:
            process.terminate()
            self._end(END_S)
            raise
        if failure:
            self._end(0.0)
            return failure
        if line := process.stdout.readline():
            return json.loads(line)
        # The kernel and libraries kill a process if memory is used up.
        code = process.wait()
        how = f"exit code {code}"
        if code < 0:
            how = f"killed by signal {-code} ({signal.Signals(-code).name})"
        assert self._errors is not None
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        how = ", ".join([how, *(" ".join(line.split())[:160] for line in last)])
        return {"failed": f"the process was lost: {how}", "memory": True}

    def _wait(self, answers: IO[str], until: float) -> dict[str, Any]:
        if not hasattr(select, "poll"):  # Windows waits for no pipe: reading the answer does
            return {}
        look_s = None
        if self.limit is not None or until < math.inf:
            look_s = LOOK_S
        floor = spare_bytes() // 2
        with DefaultSelector() as selector:
            selector.register(answers, EVENT_READ)
            while not selector.select(look_s):
                if self.limit is not None and available_memory_bytes() < floor:
                    return {"failed": "this machine's memory was nearly used up", "memory": True}
                if time.monotonic() > until:
                    return {"failed": "steps take too long", "late": True}
        return {}

    def _end(self, grace_s: float) -> None:
        """Wait for the process, then kill its session. Its ranks die with it."""
        process, self.process = self.process, None
        if process is None or self._errors is None:
            return
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        finally:  # also after a second Ctrl-C
            if process.returncode != 0:
                with suppress(ProcessLookupError, PermissionError):
                    if hasattr(os, "killpg"):
                        os.killpg(process.pid, signal.SIGKILL)
                    else:  # Windows
                        process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._errors):
                with suppress(BrokenPipeError):
                    stream.close()  # pyright: ignore[reportOptionalMemberAccess]


def _error_of(answer: dict[str, Any], name: str) -> PacelineError:
    if "error" in answer:
        kind, words = answer["error"]
        return error_kinds()[kind](*words)
    fix = "try 'paceline train' with this choice; debug=trace shows more"
    return ResourceError(185, name, answer["failed"], fix)


def in_turn(num_settings: int, repeats: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (repeat, setting): each repeat has all settings, in its own order from ``seed``."""
    for repeat in range(repeats):
        for number in np.random.default_rng([seed, repeat]).permutation(num_settings):
            yield repeat, int(number)


def repeated(
    settings: Sequence[TrialSetting],
    what: str,
    seconds: float,
    burn_in_s: float,
    repeats: int,
    seed: int,
) -> Generator[tuple[int, int, Measured]]:
    """Yield (repeat, setting, figures), each in a new process. What fails is not tried again."""
    failed: set[int] = set()
    for repeat, number in in_turn(len(settings), repeats, seed):
        if number in failed:
            continue
        with closing(TrialProcess()) as process:
            measured = process.measure(settings[number], what, seconds, burn_in_s)
        if measured.error is not None:
            failed.add(number)
        yield repeat, number, measured
