"""Measure what a run does beside its steps, by a short run in a temporary folder."""

import io
import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from framework.commands.diagnose.run_facts import RunFacts
from framework.config.assemble import Assembly, assemble
from framework.config.training_parts import open_sinks, training_parts
from framework.contracts.data import MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.contracts.training import Checkpoints, Report, Saved, Sink
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


def measure_run(probe: Probe, seconds: float, say: Callable[[str], None]) -> RunFacts:
    """Validate, save and report as the run would, and measure what each costs.

    The sinks of services are left out. Files are written where runs are, since saving is as slow as
    that disk.
    """
    say("validating, saving and reporting")
    deadline = Deadline(STEPS * seconds)
    with _short_run(_measured(probe.given), probe.assembly.allowed) as (assembly, folder, stack):
        parts = training_parts(assembly, folder, deadline)
        assert parts.checkpoints is not None
        saves = TimedCheckpoints(parts.checkpoints)
        sets = parts.val if isinstance(parts.val, Mapping) else {"": parts.val}
        limited = {
            name: LimitedLoader(loader, VALIDATION * seconds / len(sets))
            for name, loader in sets.items()
            if loader is not None
        }
        val = limited if isinstance(parts.val, Mapping) else limited.get("")
        trainer = Trainer(replace(parts, checkpoints=saves, val=val))
        sinks = open_sinks(stack, assembly, trainer, folder)
        names = assembly.config["sink"]
        timed = [TimedSink(sink, name) for name, sink in zip(names, sinks, strict=True)]
        trainer.fit(timed)
        epoch_steps = assembly.train.num_steps
        step_s = trainer.pace.train_s / max(1, trainer.progress.step)
        validate_every = None
        if limited:
            validate_every = probe.given["validate_every"] or epoch_steps
        return RunFacts(
            epoch_steps=epoch_steps,
            report_s={sink.name: sink.mean_s for sink in timed},
            report_every=probe.given["report_every"],
            validate_s=_validation_s(trainer, timed, list(limited.values())),
            validate_every=validate_every,
            save_s=saves.state_s,
            weights_s=saves.weights_s,
            save_every=_save_every(probe.given, validate_every, epoch_steps, step_s),
        )


def run_rate(config: Config, allowed: Sequence[str], seconds: float) -> float:
    """Return the records per second of a run that validates, saves and reports."""
    deadline = Deadline(seconds)
    with _short_run(_without_services(config), allowed) as (assembly, folder, stack):
        trainer = Trainer(training_parts(assembly, folder, deadline))
        trainer.fit(open_sinks(stack, assembly, trainer, folder))
        return deadline.steps_per_s * assembly.train_source.order.batch_size


@contextmanager
def _short_run(
    config: Config, allowed: Sequence[str]
) -> Generator[tuple[Assembly, Path, ExitStack]]:
    """Build a run in a temporary folder. Nothing that it prints is shown."""
    quiet = io.StringIO()
    place = "outputs" if os.path.isdir("outputs") else None
    with (
        scratch_folder("paceline-diagnose-", place) as folder,
        redirect_stdout(quiet),
        redirect_stderr(quiet),
        closing(assemble(_endless(config), allowed, _ignore)) as assembly,
        ExitStack() as stack,
    ):
        yield assembly, Path(folder), stack


def _endless(config: Config) -> Config:
    """Return the configuration of a new run that nothing ends."""
    return {
        **config,
        "epochs": ENDLESS,
        "max_steps": None,
        "resume": {"run": None, "auto": False, "allow": []},
        "stop": {**config["stop"], "patience": None, "after": None},
        "watchers": {},
        "verify": "off",
    }


def _ignore(text: str) -> None:
    pass


def _without_services(config: Config) -> Config:
    sinks = {
        name: block
        for name, block in (config.get("sink") or {}).items()
        if not str(block.get("_target_")).startswith(SERVICES)
    }
    return {**config, "sink": sinks}


def _measured(config: Config) -> Config:
    """Return the configuration of a run that reports often, and nothing else by itself."""
    never = {"every_steps": None, "every_epochs": None, "every_s": None}
    return {
        **_without_services(config),
        "validate_every": ENDLESS,
        "report_every": REPORT_EVERY,
        "checkpoint": {**config["checkpoint"], **never},
    }


def _validation_s(
    trainer: Trainer, sinks: Sequence[Sink], loaders: "Sequence[LimitedLoader]"
) -> float:
    """Return the seconds of a whole validation; 0 without validation data."""
    took_s = 0.0
    for _ in range(2):  # the first starts workers
        before_s = trainer.validate_s
        trainer.validate(sinks)
        took_s = trainer.validate_s - before_s
        if took_s > REPEATED_S:
            break
    return took_s + math.fsum(loader.missing_s for loader in loaders)


def _save_every(
    config: Config, validate_every: int | None, epoch_steps: int, step_s: float
) -> dict[str, float]:
    """Return the steps between two saves, by the key that asks for them."""
    chosen = config["checkpoint"]
    saves = {
        "validate_every": validate_every or math.inf,
        "checkpoint.every_steps": chosen["every_steps"] or math.inf,
        "checkpoint.every_epochs": (chosen["every_epochs"] or math.inf) * epoch_steps,
        "checkpoint.every_s": max(1.0, (chosen["every_s"] or math.inf) / max(step_s, 1e-9)),
    }
    return {key: every for key, every in saves.items() if every < math.inf}


@final
class Deadline:
    """Says after each step whether a time is over. The first step starts the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = 0.0
        self._now = 0.0
        self._num_steps = 0

    def __call__(self) -> bool:
        self._now = time.perf_counter()
        if self._num_steps == 0:
            self._start = self._now
        self._num_steps += 1
        return self._now - self._start > self._seconds and self._num_steps > LEAST_STEPS

    @property
    def steps_per_s(self) -> float:
        """Steps per second after the first, with all that happened between them."""
        return (self._num_steps - 1) / max(self._now - self._start, 1e-9)


@final
class TimedSink:
    """A sink whose reports are timed."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.name = name
        self._sink = sink
        self._times_s: list[float] = []

    @property
    def mean_s(self) -> float:
        """Seconds per report of training, without the first, which opens files."""
        later = self._times_s[1:]
        return math.fsum(later) / max(1, len(later))

    def write(self, report: Report) -> None:
        start = time.perf_counter()
        self._sink.write(report)
        if report.split == "train":
            self._times_s.append(time.perf_counter() - start)

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self._sink.close()


@final
class TimedCheckpoints:
    """Checkpoints whose saves are timed.

    The save at the end of a run also writes the weights, which most saves do not. So the state is
    saved alone, too, several times.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._states_s: list[float] = []
        self._all_s = 0.0

    @property
    def state_s(self) -> float:
        """Seconds to save a state."""
        return median(self._states_s) if self._states_s else 0.0

    @property
    def weights_s(self) -> float:
        """Seconds that saving the weights adds."""
        return max(0.0, self._all_s - self.state_s)

    def is_late(self) -> bool:
        return False

    def save(
        self,
        step: int,
        state: dict[str, Any],
        weights: dict[str, Any] | None,
        best: bool,
        final: bool,
    ) -> Saved:
        def timed(kept: dict[str, Any] | None, is_best: bool) -> tuple[Saved, float]:
            # each has a file of its own, as in a run: replacing one takes longer
            place = step + len(self._states_s)
            start = time.perf_counter()
            saved = self._checkpoints.save(place, state, kept, is_best, final)
            return saved, time.perf_counter() - start

        start = time.perf_counter()
        while len(self._states_s) < MOST_SAVES and time.perf_counter() - start <= REPEATED_S:
            self._states_s.append(timed(None, False)[1])
        saved, self._all_s = timed(weights, best)
        return saved


@final
class LimitedLoader:
    """A loader that ends after some seconds, and knows how long the rest would have taken."""

    def __init__(self, loader: Loader, seconds: float) -> None:
        self._loader = loader
        self._seconds = seconds
        self.missing_s = 0.0
        self.num_steps = loader.num_steps
        self.identity = loader.identity
        self.notes = loader.notes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        begin = time.perf_counter()
        with closing(self._loader.epoch(epoch, start)) as batches:
            for number, micro in enumerate(batches, 1):
                yield micro
                took_s = time.perf_counter() - begin
                self.missing_s = took_s / number * max(0, self.num_steps - number)
                if took_s > self._seconds:
                    break

    def stats(self) -> LoaderStats:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()
