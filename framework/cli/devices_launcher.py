"""``hydra/launcher=devices``: the jobs of a sweep side by side, each on GPUs and cores of its own.

A job is a process that runs the sweep's own command line. The words of the job come by the
environment. They are not typed, so they allow nothing: a file may have set them. The job answers in
a file in memory, and prints into a log in its own folder.
"""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from framework.cli.arguments import quoted
from framework.cli.tables import counted_bar, plural
from framework.config.schema import option_rules
from framework.errors import ConfigError, say
from framework.system import stopping
from framework.system.run_dir import JOB_LOG, redacted, shown

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

VARIABLE = "PACELINE_JOB"  # what a launcher asks of a process
MOST_BYTES = 1 << 16  # of an answer
LOOK_S = 0.05  # the time between two looks at the jobs


class JobFailed(Exception):
    """A job of a sweep failed in another process of a launcher, and has printed why."""


class SweepStopped(BaseException):  # after an Exception Hydra would start the next job
    """A signal ended a job, or all that ran side by side, and with it the sweep."""


class DeviceShare(NamedTuple):
    """What one job at a time may use."""

    cores: Sequence[int]
    gpus: Sequence[str]  # as CUDA_VISIBLE_DEVICES names them


@dataclass(eq=False)
class LaunchedJob:
    number: int  # Hydra's
    words: list[str]  # its overrides
    share: DeviceShare
    process: subprocess.Popen[bytes]
    file: int  # the descriptor of its answer
    answer: dict[str, Any] = field(default_factory=dict[str, Any])  # as ``run_asked`` writes it
    code: int = 0  # the exit code
    reason: str = "finished"  # or why it failed, as one line

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, note how."""
        if self.process.poll() is None:
            return False
        self.answer = json.loads(os.pread(self.file, MOST_BYTES, 0))
        os.close(self.file)
        self.code = self.process.returncode
        if self.code < 0:
            self.reason, self.code = f"was ended by signal {-self.code}", 128 - self.code
        elif self.code:
            self.reason = f"ended with exit code {self.code}"
            with suppress(OSError):
                text = Path(self.answer["log"]).read_text("utf-8", "replace").strip()
                self.reason = shown(text.rpartition("\n")[2] or self.reason)
        return True


class DevicesLauncher(Launcher):
    """Run each job in a process of its own that sees only its GPUs and cores.

    A job that fails stops no other. The first signal lets every job save its state and end, and
    the second ends all at once. The options are those of ``conf/hydra/launcher/devices.yaml``.
    """

    command: ClassVar[Sequence[str]] = ()  # the command line of the sweep, without the program
    ended: ClassVar[list[LaunchedJob]] = []  # the jobs of this command, in their order

    def __init__(self, gpus: Any, cores: Any, jobs: Any) -> None:
        self.options = {"gpus": gpus, "cores": cores, "jobs": jobs}
        self.running: list[LaunchedJob] = []
        self.signal = 0  # the number of the first signal; 0: none came
        self.signal_at = 0.0

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Check the options. ConfigError C101; C128 on another system than Linux."""
        if not hasattr(os, "memfd_create"):
            what = "needs Linux, which gives a process cores of its own"
            raise ConfigError(128, "hydra/launcher = devices", what, "leave it out")
        self.hydra = config.hydra
        for key, rule in option_rules("hydra/launcher").items():
            name = key.rpartition(".")[2]
            rule.check(f"hydra.launcher.{name}", self.options[name])

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs and wait for all. ConfigError C128; SweepStopped after a signal."""
        from framework.measure.host import num_cores, visible_gpus  # noqa: PLC0415  # only here

        cores = sorted(os.sched_getaffinity(0))[: num_cores()]
        total, begun = len(job_overrides), len(self.ended)
        free = shares(cores, visible_gpus(), total, self.options)
        waiting = deque(enumerate(map(list, job_overrides), initial_job_idx))
        os.makedirs(self.hydra.sweep.dir, exist_ok=True)
        handled = stopping.handled(stopping.NUMBERS, self._on_signal)
        with counted_bar("sweep", total) as advance, handled:
            while self.running or (waiting and not self.signal):
                while waiting and free and not self.signal:
                    self.running.append(self._started(*waiting.popleft(), free.pop(0)))
                    if self.signal:  # it came in between
                        os.kill(self.running[-1].process.pid, self.signal)
                time.sleep(LOOK_S)
                for job in [job for job in self.running if job.has_ended()]:
                    self.running.remove(job)
                    self.ended.append(job)
                    free.append(job.share)
                    advance(advance=1)
                    if job.code or not sys.stderr.isatty():
                        done = len(self.ended) - begun
                        say(f"job {job.number}: {job.reason} ({done} of {total})", sys.stderr)
        jobs = self.ended[begun:] = sorted(self.ended[begun:], key=lambda job: job.number)
        if self.signal:
            codes = [job.code for job in jobs if job.code]
            raise SweepStopped(next(iter(codes), stopping.exit_code(self.signal)))
        returns: list[JobReturn] = []
        for job in jobs:
            result, status = job.answer.get("value"), JobStatus.COMPLETED
            # Hydra's own sweeper would give up at a failure, before its next batch.
            if job.code and self.hydra.runtime.choices["hydra/sweeper"] != "basic":
                result, status = JobFailed(job.code), JobStatus.FAILED
            returns.append(JobReturn(job.words, status=status, _return_value=result))
        return returns

    def _started(self, number: int, words: list[str], share: DeviceShare) -> LaunchedJob:
        sweep_dir = self.hydra.sweep.dir
        log = os.path.join(sweep_dir, f"{number}.log")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
        output = os.open(log, flags, 0o666)
        file = os.memfd_create("paceline-job")
        os.write(file, json.dumps({"log": log}).encode())
        own = [f"hydra.job.id={number}", f"hydra.job.num={number}"]
        all_words = [*self.hydra.overrides.hydra, f"hydra.sweep.dir={quoted(sweep_dir)}", *own]
        all_words += words
        threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        if not threads.isdecimal() or int(threads) > len(share.cores):
            threads = str(len(share.cores))
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(share.gpus),
            "OMP_NUM_THREADS": threads,
            VARIABLE: json.dumps(AskedJob(all_words, os.getpid(), file)),
        }
        # A process has the cores of the thread that starts it. So they count before its first
        # library asks how many there are.
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, share.cores)
        try:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "framework", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[file],
                env={**os.environ, **environment},
                start_new_session=True,  # a terminal's Ctrl-C goes to the launcher alone
            )
        finally:
            os.close(output)
            os.sched_setaffinity(0, before)
        return LaunchedJob(number, words, share, process, file)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self.signal_at = number, time.monotonic()
            for job in self.running:
                with suppress(ProcessLookupError):
                    os.kill(job.process.pid, number)
        elif time.monotonic() - self.signal_at > stopping.SAME_S:
            with ExitStack() as stack:
                for job in self.running:
                    stack.enter_context(stopping.grace_period(job.process.pid))
                stopping.end(number)


def shares(
    cores: Sequence[int], gpus: Sequence[str], num_jobs: int, options: Mapping[str, int | None]
) -> list[DeviceShare]:
    """Divide the machine into shares, one for each job that runs at the same time.

    ConfigError C128 if the machine has not enough for one job.
    """
    num_gpus, num_cores, most = options["gpus"], options["cores"], options["jobs"]
    if num_gpus is None:
        num_gpus = min(1, len(gpus))
    for name, wanted, known in (("gpus", num_gpus, gpus), ("cores", num_cores or 1, cores)):
        if wanted > len(known):
            what = f"must be at most {len(known)}, which is all that this command may use"
            raise ConfigError(128, f"hydra.launcher.{name} = {wanted}", what, "give fewer")
    num = min(num_jobs, most or num_jobs, len(cores) // (num_cores or 1))
    if num_gpus:
        num = min(num, len(gpus) // num_gpus)
    each, own = num_cores or len(cores) // num, num_gpus
    return [DeviceShare(cores[n * each :][:each], gpus[n * own :][:own]) for n in range(num)]


def print_failures() -> None:
    """Print which jobs of this command failed, why, and where each has its log."""
    failed = [job for job in DevicesLauncher.ended if job.code]
    if failed:
        num = plural(len(DevicesLauncher.ended), "job")
        say(f"{len(failed)} of {num} failed or stopped:", sys.stderr)
    for job in failed:
        words = f"job {job.number} ({' '.join(job.words)})"
        say(f"  {words}: {job.reason}; see {job.answer['log']}", sys.stderr)


class AskedJob(NamedTuple):
    """The job that a process runs for a launcher."""

    words: list[str]  # all, those about Hydra first
    launcher: int  # the number of its process
    file: int  # the descriptor for the answer

    def reply(self, **values: Any) -> None:
        text = json.dumps(values).encode()
        os.ftruncate(self.file, len(text))
        os.pwrite(self.file, text, 0)


@cache
def asked_job() -> AskedJob | None:
    """Return the job that a launcher asks of this process; None if a user started it."""
    text = os.environ.pop(VARIABLE, None)  # our own processes are not asked
    if text is None:
        return None
    job = AskedJob(*json.loads(text))
    os.set_inheritable(job.file, False)
    stopping.die_with_parent()
    if os.getppid() != job.launcher:  # it died before the kernel knew
        os._exit(1)
    stream: Any
    for stream in (sys.stdout, sys.stderr):  # a log has no values from the environment
        stream.reconfigure(line_buffering=True)
        stream.write = lambda text, write=stream.write: write(redacted(text))
    return job


def run_asked(hydra: "Hydra", command: str, job: AskedJob, task: TaskFunction) -> None:
    """Run the job that this process is asked for, and answer with its folder, log and value."""
    loader: Any = hydra.config_loader
    config = loader.load_configuration(command, job.words, RunMode.RUN)
    sweep_dir, number = config.hydra.sweep.dir, config.hydra.job.num
    folder = Path(sweep_dir, config.hydra.sweep.subdir)
    folder.mkdir(parents=True, exist_ok=True)
    log = Path(sweep_dir, f"{number}.log")
    if not (folder / JOB_LOG).exists():  # there is one if another run is there
        log = log.rename(folder / JOB_LOG)
    answer = {"folder": str(folder), "log": str(log)}
    job.reply(**answer)
    result = run_job(
        hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks(config)),
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    job.reply(**answer, value=result.return_value)
