"""Try batch sizes in a process that may run out of memory, and survive what happens to it."""

import json
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

from framework.commands.bench.process import end_session, last_line
from framework.commands.tune.batch_sizes import Trial
from framework.errors import PacelineError, ResourceError, error_kinds
from framework.measure.host import available_memory_bytes, total_memory_bytes

Config = dict[str, Any]
LOOK_S = 0.05  # how often memory is checked; a core writes about 100 MB in this time
START_S = 120.0  # for a process to import torch and open the data
# The machine keeps this share of its memory for others, and at least so many bytes.
SPARE = 0.1
LEAST_SPARE = 1 << 29


@final
class TrialProcess:
    """A process that trains ``config`` with one batch size after the other.

    It raises what a run would raise that cannot even start. ``limit_bytes`` is the memory that it
    may take: by default all of a GPU's, and on the host what is available less a tenth.
    """

    def __init__(
        self, config: Config, allowed: Sequence[str], limit_bytes: int | None = None
    ) -> None:
        self.config = config
        self.allowed = tuple(allowed)
        self.limit_bytes = limit_bytes
        self._epochs = count()
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] = tempfile.TemporaryFile(  # noqa: SIM115  # see close
            "w+", encoding="utf-8", errors="replace"
        )
        try:
            facts = self._start()
            self.num_records: int = facts["num_records"]  # of an epoch: the largest batch
            self.cuda: bool = facts["cuda"]
        except BaseException:
            self.close()
            raise

    def attempt(self, batch_size: int, seconds: float, limit_s: float) -> Trial:
        """Train for about ``seconds``. A trial fails after ``limit_s``, or without memory."""
        if self._process is None:
            self._start()
        request = {"batch_size": batch_size, "seconds": seconds, "epoch": next(self._epochs)}
        answer = self._ask(request, limit_s)
        if "why" not in answer:
            return Trial(batch_size, tuple(answer["rates"]), answer["step_s"], answer["peak_bytes"])
        self._end()
        late = answer.get("late", False)
        return Trial(batch_size, why=answer["why"], memory=answer["memory"], late=late)

    def close(self) -> None:
        self._end()
        self._errors.close()

    def _start(self) -> dict[str, Any]:
        self._process = self._new_process()
        limit = self.limit_bytes
        if limit is None and not self._on_cuda():
            limit = max(0, available_memory_bytes() - spare_bytes())
        request = {"config": self.config, "allowed": self.allowed, "limit_bytes": limit}
        facts = self._ask(request, START_S)
        if "error" in facts:
            self._end()
            kind, words = facts["error"]
            raise error_kinds()[kind](*words)
        if "why" in facts:
            self._end()
            fix = "free memory, or choose a smaller model"
            raise ResourceError(104, "batch_size", facts["why"], fix)
        return facts

    def _new_process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "framework.commands.tune.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def _on_cuda(self) -> bool:
        """Return whether the run uses CUDA, without opening a context that takes memory."""
        import torch  # noqa: PLC0415

        device = self.config["device"]
        return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the process has died, which its answer will say
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        why = self._wait(process.stdout, time.monotonic() + limit_s)
        if why:
            return {"why": why, "memory": "memory" in why, "late": "memory" not in why}
        line = process.stdout.readline()
        return json.loads(line) if line else self._lost(process)

    def _wait(self, answers: IO[str], until: float) -> str:
        """Wait for an answer. Return why not to wait any longer, or an empty string."""
        floor = spare_bytes() // 2
        with DefaultSelector() as selector:
            selector.register(answers, EVENT_READ)
            while not selector.select(LOOK_S):
                if available_memory_bytes() < floor:
                    return "this machine's memory was nearly used up"
                if time.monotonic() > until:
                    return "steps take too long"
        return ""

    def _lost(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Describe the end of a process. The kernel and libraries kill if memory is used up."""
        code = process.wait()
        self._errors.seek(0)
        how = f"exit code {code}"
        if code < 0:
            how = f"killed by signal {-code} ({signal.Signals(-code).name})"
        how = ", ".join([how, *last_line(self._errors.read(), 160)])
        return {"why": f"the process was lost: {how}", "memory": True}

    def _end(self) -> None:
        """Kill the process and its workers."""
        process = self._process
        self._process = None
        if process is None:
            return
        end_session(process, 0.0)
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # pyright: ignore[reportOptionalMemberAccess]


def spare_bytes() -> int:
    """Return the memory that is left to other programs."""
    return max(LEAST_SPARE, int(SPARE * total_memory_bytes()))


def smallest_fails(trial: Trial) -> PacelineError:
    """Return the error for a smallest size that does not run."""
    fix = "see that 'paceline train' runs with it"
    if trial.memory:
        fix = "free memory, choose a smaller model, or raise memory="
    return ResourceError(104, f"batch_size = {trial.batch_size}", trial.why, fix)
