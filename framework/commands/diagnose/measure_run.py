"""Measure what a run does beside its steps, by a short run in a temporary folder."""

import io
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

from framework.config.assemble import Assembly, assemble
from framework.config.training_parts import open_sinks, training_parts
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.contracts.training import Checkpoints, Report, Sink
from framework.diagnosis.facts import RunFacts
from framework.measure.statistics import median
from framework.system.stopping import scratch_folder
from framework.train.trainer import Trainer
from framework.trials.probe import ENDLESS, Config, Probe

# Shares of the given seconds.
STEPS = 0.05
VALIDATION = 0.04
# If the first validation took less, it is repeated, since it started workers. Saves are repeated
# for so long.
REPEATED_S = 0.5
MOST_SAVES = 8
LEAST_STEPS = 8
REPORT_EVERY = 2
# They send reports to a service, which must not learn of a run that measures.
SERVICES = ("framework.sink.mlflow.", "framework.sink.wandb.")


def measure_run(probe: Probe, seconds: float) -> RunFacts:
    """Validate, save and report as the run would, and measure what each costs.

    The sinks of services are left out. Files are written where runs are, since saving is as slow as
    that disk.
    """
    given = probe.given
    never = {"every_steps": None, "every_epochs": None, "every_s": None}
    quiet = {
        **given,
        "validate_every": ENDLESS,
        "report_every": REPORT_EVERY,
        "checkpoint": {**given["checkpoint"], **never},
    }
    missing_s: dict[str, float] = {}

    def limited(name: str, most_s: float, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """End after some seconds, and note how long the other batches would have taken."""
        begin = time.perf_counter()
        for number, micro in enumerate(batches, 1):
            yield micro
            took_s = time.perf_counter() - begin
            missing_s[name] = took_s / number * max(0, sets[name].num_steps - number)
            if took_s > most_s:
                return

    with _short_run(quiet, probe.assembly.allowed) as (assembly, folder, stack):
        parts = training_parts(assembly, folder, StepTimer(STEPS * seconds, 1, LEAST_STEPS))
        sets: Mapping[str, Loader] = {}
        if isinstance(parts.val, Mapping):
            sets = parts.val
        elif parts.val is not None:
            sets = {"": parts.val}
        most_s = VALIDATION * seconds / max(1, len(sets))
        val = {name: Through(set_, partial(limited, name, most_s)) for name, set_ in sets.items()}
        quick = val if isinstance(parts.val, Mapping) else val.get("")
        trainer = Trainer(replace(parts, checkpoints=None, val=quick))
        sinks = open_sinks(stack, assembly, trainer, folder)
        timed = {name: TimedSink(s) for name, s in zip(assembly.config["sink"], sinks, strict=True)}
        trainer.fit([*timed.values()])
        took_s = 0.0
        for _ in range(2):  # the first starts workers
            before_s = trainer.validate_s
            trainer.validate([*timed.values()])
            took_s = trainer.validate_s - before_s
            if took_s > REPEATED_S:
                break
        assert parts.checkpoints is not None
        save_s, weights_s = saves_s(trainer, parts.checkpoints)
        epoch_steps = assembly.train.num_steps
        step_s = trainer.pace.train_s / max(1, trainer.progress.step)
        validate_every = (given["validate_every"] or epoch_steps) if sets else None
        every = given["checkpoint"]
        intervals = {
            "validate_every": validate_every or math.inf,
            "checkpoint.every_steps": every["every_steps"] or math.inf,
            "checkpoint.every_epochs": (every["every_epochs"] or math.inf) * epoch_steps,
            "checkpoint.every_s": max(1.0, (every["every_s"] or math.inf) / max(step_s, 1e-9)),
        }
        return RunFacts(
            epoch_steps=epoch_steps,
            validate_s=took_s + math.fsum(missing_s.values()),
            validate_every=validate_every,
            save_s=save_s,
            weights_s=weights_s,
            save_every={key: steps for key, steps in intervals.items() if steps < math.inf},
            report_s={name: sink.mean_s for name, sink in timed.items()},
            report_every=given["report_every"],
        )


def saves_s(trainer: Trainer, checkpoints: Checkpoints) -> tuple[float, float]:
    """Return the seconds to save a state, and those that saving the weights adds."""
    state = trainer.state_dict()
    weights = trainer.parts.parallel.gather_state(trainer.stepper.weights())
    step = trainer.progress.step
    times_s: list[float] = []
    begin = time.perf_counter()
    while len(times_s) < MOST_SAVES and time.perf_counter() - begin <= REPEATED_S:
        start = time.perf_counter()
        # Each has a file of its own, as in a run: replacing a file takes longer.
        checkpoints.save(step + len(times_s), state, None, False, True)
        times_s.append(time.perf_counter() - start)
    start = time.perf_counter()
    checkpoints.save(step + len(times_s), state, weights, False, True)
    return median(times_s), max(0.0, time.perf_counter() - start - median(times_s))


def run_rate(config: Config, allowed: Sequence[str], seconds: float) -> float:
    """Return the records per second of a run that validates, saves and reports."""
    timer = StepTimer(seconds, 1, LEAST_STEPS)
    with _short_run(config, allowed) as (assembly, folder, stack):
        trainer = Trainer(training_parts(assembly, folder, timer))
        trainer.fit(open_sinks(stack, assembly, trainer, folder))
        return assembly.train_source.order.batch_size / timer.step_s


@contextmanager
def _short_run(
    config: Config, allowed: Sequence[str]
) -> Generator[tuple[Assembly, Path, ExitStack]]:
    """Build a run in a temporary folder, which nothing ends. Nothing that it prints is shown."""
    sinks = {
        name: block
        for name, block in (config.get("sink") or {}).items()
        if not str(block.get("_target_")).startswith(SERVICES)
    }
    endless = {
        **config,
        "sink": sinks,
        "epochs": ENDLESS,
        "max_steps": None,
        "resume": {"run": None, "auto": False, "allow": []},
        "stop": {**config["stop"], "patience": None, "after": None},
        "watchers": {},
        "verify": "off",
    }
    quiet = io.StringIO()
    place = "outputs" if os.path.isdir("outputs") else None
    with (
        scratch_folder("paceline-diagnose-", place) as folder,
        redirect_stdout(quiet),
        redirect_stderr(quiet),
        closing(assemble(endless, allowed, lambda _: None)) as assembly,
        ExitStack() as stack,
    ):
        yield assembly, Path(folder), stack


@final
class StepTimer:
    """Says after each step whether a time is over, and measures the steps after the first ones.

    Args:
        seconds: How long to continue after the first steps.
        num_first: The first steps, which do not count.
        least: The steps that are measured at least.
        at_start: Called after the first steps.
    """

    def __init__(
        self, seconds: float, num_first: int, least: int, *at_start: Callable[[], object]
    ) -> None:
        self.at_start = [*at_start]
        self._seconds = seconds
        self._least = least
        self._num_steps = -num_first  # that were measured
        self._start_s = self._last_s = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a mean step, with all that happened between steps."""
        return max(self._last_s - self._start_s, 1e-9) / self._num_steps

    def __call__(self) -> bool:
        """Count a step, and return whether it was the last one."""
        self._num_steps += 1
        self._last_s = time.perf_counter()
        if self._num_steps == 0:
            self._start_s = self._last_s
            for call in self.at_start:
                call()
        return self._num_steps >= self._least and self._last_s - self._start_s > self._seconds


@final
class Through:
    """A Loader whose micro-batches pass through a function."""

    def __init__(
        self, loader: Loader, change: Callable[[Iterator[MicroBatch]], Iterator[MicroBatch]]
    ) -> None:
        self._loader = loader
        self._change = change
        self.num_steps = loader.num_steps
        self.identity = loader.identity
        self.notes = loader.notes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self._loader.epoch(epoch, start)) as micro_batches:
            yield from self._change(micro_batches)

    def stats(self) -> LoaderStats:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()


@final
class TimedSink:
    """A sink whose reports of training are timed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._times_s: list[float] = []
        self.flush = sink.flush
        self.close = sink.close

    @property
    def mean_s(self) -> float:
        """Seconds per report, without the first, which opens files."""
        later = self._times_s[1:]
        return math.fsum(later) / max(1, len(later))

    def write(self, report: Report) -> None:
        start = time.perf_counter()
        self._sink.write(report)
        if report.split == "train":
            self._times_s.append(time.perf_counter() - start)
