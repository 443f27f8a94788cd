"""Tries batch sizes in a process of its own, and survives what happens to it; the machine's memory is watched meanwhile."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any, final

from framework.commands.tune.batch_sizes import Trial
from framework.commands.tune.memory import spare_bytes
from framework.errors import PacelineError, ResourceError, error_kinds
from framework.measure.host import available_memory_bytes

Config = dict[str, Any]
LOOK_S = 0.05  # how often memory is looked at: a core writes some 100 MB in that time
START_S = 120.0  # for a process to import torch and open the data


@final
class Guarded:
    """Trains ``config`` with one batch size after the other. ``limit_bytes``: how much memory of the device it may take; None: on the host
    what is available, less a tenth; on CUDA all there is. Raises what a run would raise that cannot even begin.
    """

    def __init__(
        self, config: Config, allowed: Sequence[str], limit_bytes: int | None = None
    ) -> None:
        self.config, self.allowed, self.limit_bytes = config, tuple(allowed), limit_bytes
        self._epochs = count()
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed by close
        try:
            self.facts = self._start()
        except BaseException:
            self.close()
            raise

    @property
    def num_records(self) -> int:
        """Of an epoch: no batch is larger."""
        return int(self.facts["num_records"])

    @property
    def cuda(self) -> bool:
        return bool(self.facts["cuda"])

    def attempt(self, batch_size: int, seconds: float, limit_s: float) -> Trial:
        """Steps of ``batch_size`` records for some ``seconds``. Not fitting, dying and taking longer than ``limit_s`` are results too."""
        if self._process is None:
            self._start()
        answer = self._ask(
            {"batch_size": batch_size, "seconds": seconds, "epoch": next(self._epochs)}, limit_s
        )
        if "why" in answer:
            self._end()
            return Trial(
                batch_size,
                why=answer["why"],
                memory=answer["memory"],
                late=answer.get("late", False),
            )
        return Trial(batch_size, tuple(answer["rates"]), answer["step_s"], answer["peak_bytes"])

    def _start(self) -> dict[str, Any]:
        words = [sys.executable, "-m", "framework.commands.tune.trial"]
        self._process = subprocess.Popen(  # noqa: S603
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        limit = self.limit_bytes
        if limit is None and not self._on_cuda():
            limit = max(0, available_memory_bytes() - spare_bytes())
        facts = self._ask(
            {"config": self.config, "allowed": self.allowed, "limit_bytes": limit}, START_S
        )
        if "error" in facts or "why" in facts:
            self._end()
            raise _error(facts, "batch_size")
        return facts

    def _on_cuda(self) -> bool:
        """Whether the run's device is CUDA; asked without opening it here, where its context would take memory."""
        import torch  # noqa: PLC0415

        return self.config["device"].startswith("cuda") or (
            self.config["device"] == "auto" and torch.cuda.is_available()
        )

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone; the answer says so
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        why = self._wait(process, time.monotonic() + limit_s)
        if why:
            return {"why": why, "memory": "memory" in why, "late": "memory" not in why}
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line else self._lost(process)

    def _wait(self, process: "subprocess.Popen[str]", until: float) -> str:
        """Until there is an answer; otherwise why it is waited for no longer."""
        floor = spare_bytes() // 2
        with DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)  # pyright: ignore[reportArgumentType]
            while not selector.select(LOOK_S):
                if available_memory_bytes() < floor:
                    return "this machine's memory was nearly used up"
                if time.monotonic() > until:
                    return "steps take too long"
        return ""

    def _lost(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        """It ended without an answer: the kernel's or a library's way to say that memory is used up."""
        code = process.wait()
        self._errors.seek(0)
        said = " ".join((self._errors.read().strip().splitlines() or [""])[-1].split())[:160]
        how = (
            f"killed by signal {-code} ({signal.Signals(-code).name})"
            if code < 0
            else f"exit code {code}"
        )
        return {"why": f"the process was lost: {how}{f', {said}' if said else ''}", "memory": True}

    def _end(self) -> None:
        """End the process and its workers, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # pyright: ignore[reportOptionalMemberAccess]

    def close(self) -> None:
        self._end()
        self._errors.close()


def _error(answer: dict[str, Any], where: str) -> PacelineError:
    """The error that a process answered with."""
    if "error" in answer:
        kind, words = answer["error"]
        return error_kinds()[kind](*words)
    return ResourceError(104, where, answer["why"], "free memory, or choose a smaller model")


def raised(trial: Trial) -> PacelineError:
    """The smallest size does not run: nothing can be tried."""
    fix = (
        "free memory, choose a smaller model, or raise memory="
        if trial.memory
        else "see that 'paceline train' runs with it"
    )
    return ResourceError(104, f"batch_size = {trial.batch_size}", trial.why, fix)
