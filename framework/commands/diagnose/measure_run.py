"""Measure the user's code in a step, what runs do beside steps, and ranks, which run this file."""

import sys

from framework.cli.signals import begin_rank

if __name__ == "__main__":  # signals get their meaning before anything large is imported
    begin_rank(sys.argv[1])

import io
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from framework.cli.arguments import find_packages
from framework.cli.outcome import RunOutcome
from framework.cli.run_ranks import RankedJob, launch_ranks, pack_missing, read_job, run_rank
from framework.config.assemble import Assembly
from framework.config.targets import check_targets
from framework.config.training_parts import open_sinks, training_parts
from framework.contracts.batch import leaves, move
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader
from framework.contracts.span import LateRank, RankSpan
from framework.contracts.training import Report
from framework.data.dataset import DatasetSource
from framework.data.reader import Request
from framework.data.source import StoreSource
from framework.diagnosis.code_lines import WaitingCalls
from framework.diagnosis.facts import RankFacts, RunFacts
from framework.measure.host import threads_per_rank
from framework.measure.stack_sampler import LAYERS, PythonLine, StackSampler, charged
from framework.measure.statistics import median
from framework.parallel import ddp, group
from framework.parallel.start_ranks import Meeting, parse_endpoint, share_text
from framework.system import durable, stopping
from framework.train.checkpoint import CheckpointFolder
from framework.train.step import drop_gradients
from framework.train.trainer import Trainer
from framework.trials.probe import ENDLESS, Config, Probe

SHARE = 0.06  # of the given seconds, for a step and for preparing each
MOST_LINES = 5  # of each part
LEAST_LINE = 0.02  # a line with a smaller share is left out
PARTS = ("augment", "objective", "model")
REPEATED_S = 0.5
LEAST_STEPS = 8
# They send reports to a service, which must not learn of a run that measures.
SERVICES = ("framework.sink.mlflow.", "framework.sink.wandb.")
GRACE_S = 1.0  # how much longer than planned a measurement of slow steps may take
MODULE = "framework.commands.diagnose.measure_run"
FACTS = "ranks.json"
SECONDS = "seconds"  # the key in a job's configuration that says how long to measure


def measure_code(probe: Probe, seconds: float) -> dict[str, Any]:
    """Return ``python``, ``lines`` and ``syncs`` of `Facts`.

    The stack is sampled in further steps, since sampling makes a step slower. Time in long
    operators of torch is no Python, and is subtracted: a few steps are watched for them.
    """
    sampler, calls = StackSampler(), WaitingCalls()
    step = _user_step(probe, sampler.switch)
    step()  # the first step also makes what is made once
    sampler.take()
    _repeat(step, SHARE * seconds / 2)
    plain_s = sampler.take()
    sampler.start()
    num_steps = _repeat(step, SHARE * seconds / 2)
    sampler.stop()
    sampled_s = sampler.take()
    num_watched = min(num_steps, 3)
    with _LongOperators(sampler, probe.assembly.device.type == "cpu") as watched:
        for _ in range(num_watched):
            step()
    calls.start()
    try:
        step()
    finally:
        calls.stop()
    long_s, python_s, step_s = watched.seconds, sampler.python_s(), sum(plain_s.values())
    shares: dict[str, float] = {}
    lines: list[PythonLine] = []
    for part in PARTS:
        own_s = python_s[part] - num_steps / num_watched * long_s[part]
        python = min(max(own_s / max(sampled_s[part], 1e-9), 0.0), 1.0)
        shares[part] = python * plain_s[part] / step_s
        if shares[part] > LEAST_LINE:
            lines += sampler.largest_lines(part, MOST_LINES, LEAST_LINE)
    source = probe.assembly.train_source
    if isinstance(source, StoreSource | DatasetSource):
        sampler = StackSampler("transform")
        indices = next(iter(source.order.shares(0))).indices
        source.read(Request(0, indices[:1], training=True))  # opens files
        slices = cycle(indices.split(8))
        sampler.start()
        _repeat(lambda: source.read(Request(0, next(slices), training=True)), SHARE * seconds)
        sampler.stop()
        shares["transform"] = sampler.python_s()["transform"] / sampler.total_s
        lines += sampler.largest_lines("transform", MOST_LINES, LEAST_LINE)
    lines.sort(key=lambda line: -line.share)
    return {"python": shares, "lines": tuple(lines), "syncs": tuple(calls.noted())}


def _repeat(step: Callable[[], object], seconds: float) -> int:
    end = time.perf_counter() + seconds
    num_steps = 0
    while time.perf_counter() < end or not num_steps:
        step()
        num_steps += 1
    return num_steps


def _user_step(probe: Probe, switch: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that trains one step, and calls ``switch`` with the name of each part."""
    assembly, host = probe.assembly, probe.host_batch
    parts = training_parts(assembly)
    augment = assembly.augmenter(training=True)
    model: nn.Module = parts.model
    if not probe.config["compile"]:  # a compiled model has no Python, and would compile the hooks
        model.register_forward_pre_hook(lambda *_: switch("model"))
        model.register_forward_hook(lambda *_: switch("objective"))

    def step() -> None:
        switch("copy")
        batch = move(host, assembly.device)
        switch("augment")
        batch = augment(batch, 0)
        phases: Mapping[Any, torch.optim.Optimizer] = parts.phases or {None: parts.optimizer}
        for phase, optimizer in phases.items():
            words = () if phase is None else (phase,)
            switch("objective")
            with parts.precision.autocast():
                outcome = parts.objective(parts.model, batch, *words)
            switch("model")  # autograd functions of the user
            parts.precision.backward(outcome.loss)
            switch("optimizer")
            parts.precision.step(optimizer, None)
            drop_gradients(parts.optimizer)

    return step


class _LongOperators(TorchFunctionMode):
    """Measures operators of torch that a sampler counts as Python of the user, by their place.

    On a CPU, one that keeps the thread hardly busy was interrupted, which a sampler counts, too.
    """

    def __init__(self, sampler: StackSampler, on_cpu: bool) -> None:
        super().__init__()
        self._sampler = sampler
        self._on_cpu = on_cpu
        # (seconds that passed, seconds that the thread computed) of each call, by its place
        self._calls: defaultdict[Any, list[tuple[float, float]]] = defaultdict(list)

    @property
    def seconds(self) -> defaultdict[str, float]:
        """Seconds of the long operators, by the label of what ran.

        An operator is long if most of its calls in the same place are: any call may be interrupted.
        A shorter call costs the host more than the operator computes.
        """
        seconds: defaultdict[str, float] = defaultdict(float)
        for (label, *_), calls in self._calls.items():
            if median([busy_s for _, busy_s in calls]) > 1e-4:
                seconds[label] += math.fsum(passed_s for passed_s, _ in calls)
        return seconds

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start, start_cpu = time.perf_counter(), time.thread_time()
        result = func(*args, **(kwargs or {}))
        busy_s = time.thread_time() - start_cpu
        passed_s = time.perf_counter() - start
        if not self._on_cpu:
            busy_s = passed_s  # a wait for a GPU may take no CPU time
        elif func is Tensor.tolist:  # making Python numbers is work of Python
            return result
        caller = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
        # Layers are no Python of the user, nor is what we call, such as the backward pass.
        of_layers = str(getattr(func, "__module__", "")).startswith("torch.nn.")
        in_layers = caller.f_code.co_filename.startswith(LAYERS)
        if not of_layers and not in_layers and charged(caller) is not None:
            name = getattr(func, "__name__", "")
            key = (self._sampler.label, caller.f_code, caller.f_lineno, name)
            self._calls[key].append((passed_s, busy_s))
        return result


def measure_run(probe: Probe, seconds: float) -> RunFacts:
    """Validate, save and report as the run would, where runs are, and measure what each costs."""
    given = probe.given
    every = given["checkpoint"]
    never = {**every, "every_steps": None, "every_epochs": None, "every_s": None}
    quiet = {"validate_every": ENDLESS, "report_every": 2, "checkpoint": never}
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

    with _short_run({**given, **quiet}, probe.assembly.allowed) as (assembly, folder, stack):
        parts = training_parts(assembly, folder, StepTimer(0.05 * seconds, 1, LEAST_STEPS))
        sets: Mapping[str, Loader] = {}
        if isinstance(parts.val, Mapping):
            sets = parts.val
        elif parts.val is not None:
            sets = {"": parts.val}
        most_s = 0.04 * seconds / max(1, len(sets))
        for name, loader in sets.items():
            pass_through(loader, partial(limited, name, most_s))
        trainer = Trainer(replace(parts, checkpoints=None))
        sinks = open_sinks(stack, assembly, trainer, folder)
        reports_s = [_note_reports(sink) for sink in sinks]
        trainer.fit(sinks)
        took_s = 0.0
        for _ in range(2):  # a short one is repeated, since the first starts workers
            before_s = trainer.validate_s
            trainer.validate(sinks)
            took_s = trainer.validate_s - before_s
            if took_s > REPEATED_S:
                break
        assert parts.checkpoints is not None
        epoch_steps = assembly.train.num_steps
        step_s = trainer.pace.train_s / max(1, trainer.progress.step)
        validate_every = (given["validate_every"] or epoch_steps) if sets else None
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
            save_s=_save_s(trainer, parts.checkpoints),
            save_every={key: steps for key, steps in intervals.items() if steps < math.inf},
            # Without the first report, which opens files.
            report_s={
                name: math.fsum(times_s[1:]) / max(1, len(times_s) - 1)
                for name, times_s in zip(assembly.config["sink"], reports_s, strict=True)
            },
            report_every=given["report_every"],
        )


def _note_reports(sink: Any) -> list[float]:
    times_s: list[float] = []
    write = sink.write

    def timed(report: Report) -> None:
        start = time.perf_counter()
        write(report)
        if report.split == "train":
            times_s.append(time.perf_counter() - start)

    sink.write = timed
    return times_s


def _save_s(trainer: Trainer, checkpoints: CheckpointFolder) -> float:
    """Return the seconds to save a state to a new file, as in a run: replacing one takes longer."""
    state = trainer.state_dict()
    times_s: list[float] = []
    begin = time.perf_counter()
    while len(times_s) < 8 and time.perf_counter() - begin <= REPEATED_S:
        start = time.perf_counter()
        checkpoints.save(trainer.progress.step + len(times_s), state, None, False, True)
        times_s.append(time.perf_counter() - start)
    return median(times_s)


def run_rate(config: Config, allowed: Sequence[str], seconds: float) -> float:
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
        stopping.scratch_folder("paceline-diagnose-", place) as folder,
        redirect_stdout(quiet),
        redirect_stderr(quiet),
        closing(Assembly(endless, allowed, lambda _: None)) as assembly,
        ExitStack() as stack,
    ):
        yield assembly, Path(folder), stack


@final
class StepTimer:
    """Ends a run after so many seconds, and measures at least ``least`` steps after the first."""

    def __init__(self, seconds: float, num_first: int, least: int) -> None:
        self.at_start: list[Callable[[], object]] = []  # called after the first steps
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


def pass_through(
    loader: Any, change: Callable[[Iterator[MicroBatch]], Iterator[MicroBatch]]
) -> None:
    """Let the micro-batches of a Loader pass through a function."""
    batches_of = loader.epoch

    def epoch(number: int, start: int = 0) -> MicroBatches:
        with closing(batches_of(number, start)) as micro_batches:
            yield from change(micro_batches)

    loader.epoch = epoch


class RanksFailed(Exception):
    """The ranks of a diagnosis printed an error. The argument is their outcome."""


def measured_here(
    config: Config, allowed: tuple[str, ...], folder: Path, seconds: float
) -> RankFacts | None:
    """Start this host's ranks, and return what all ranks measured; None if another host leads."""
    parallel = config["parallel"]
    job = RankedJob({**config, SECONDS: seconds}, str(folder), allowed)
    meeting = None
    if parallel.get("num_nodes", 1) > 1:
        meeting = Meeting(parse_endpoint(parallel["endpoint"]), parallel["num_nodes"])
        if not meeting.leads:
            job = read_job(meeting.share(None))._replace(run_dir=str(folder), allowed=allowed)
            check_targets(job.config, allowed)
    pack_missing(job.config, job.allowed)
    file = folder / FACTS
    try:
        outcome = launch_ranks(job, meeting, MODULE)
        if outcome.code:
            raise RanksFailed(outcome)
        if meeting is not None and not meeting.leads:
            return None
        plain = json.loads(file.read_text(encoding="utf-8"))
        plain["spans"] = {name: RankSpan(*span) for name, span in plain["spans"].items()}
        plain["late"] = plain["late"] and LateRank(*plain["late"])
        return RankFacts(**plain)
    finally:
        file.unlink(missing_ok=True)


def measured_as_rank(job: RankedJob | None, seconds: float) -> RankFacts | None:
    """Measure as a rank of another launcher. All but rank 0 pass no job and get None."""
    if job is not None:
        pack_missing(job.config, job.allowed)
        job = job._replace(config={**job.config, SECONDS: seconds})
        share_text(job.as_text())
    else:
        job = read_job(share_text(None))
        find_packages(job.allowed)
    return measure_ranks(job)


def _measured(job: RankedJob) -> RunOutcome:
    facts = measure_ranks(job)
    if facts is not None:
        durable.write_json(Path(job.run_dir, FACTS), asdict(facts))
    return RunOutcome(0, "measured")


def measure_ranks(job: RankedJob) -> RankFacts | None:
    """Measure the ranks, all of which call this together. Only rank 0 gets the facts."""
    torch.set_num_threads(threads_per_rank())
    config = {**job.config, "report_every": 10, "clock": True}
    seconds = config.pop(SECONDS)
    with closing(Probe(config, job.allowed, grace_s=GRACE_S)) as probe:
        parallel = probe.assembly.parallel
        sizes: list[float] = []
        trainer, step_s = _train(probe, 0.6 * seconds, sizes)
        numbers = torch.tensor([0.0, *sizes], dtype=torch.float64)
        norms = (group.HostSyncBatchNorm, nn.SyncBatchNorm)  # which exchange their statistics
        synchronizes = any(isinstance(own, norms) for own in trainer.parts.model.modules())
        unsynced_s = None
        if isinstance(parallel, ddp.DistributedParallel):
            parallel.syncs = False
            _, unsynced_s = _train(probe, 0.2 * seconds, [])
            parallel.syncs = True
        step_work, rank_work = work_of(parallel.gather(numbers))
        ranks, steps = trainer.ranks.whole, trainer.ranks.steps
        if ranks is None or parallel.rank != 0:
            return None
        return RankFacts(
            num_ranks=ranks.num_ranks,
            num_steps=steps.num_steps,
            step_s=step_s,
            spans=ranks.spans,
            late=ranks.late,
            exchange_share=steps.exchange_s / (steps.total_s or 1.0),
            waiting_share=steps.waiting_s / (steps.total_s or 1.0),
            step_work=step_work,
            rank_work=rank_work,
            unsynced_s=unsynced_s,
            sync_batch_norm=synchronizes,
        )


def _train(probe: Probe, seconds: float, sizes: list[float]) -> tuple[Trainer, float]:
    """Return the Trainer and the seconds of a mean step. ``sizes`` becomes this rank's shares."""
    timer = StepTimer(seconds, num_first=10, least=20)
    parts = training_parts(probe.assembly, stop=timer)
    pass_through(parts.train, lambda batches: noted_sizes(batches, sizes))
    trainer = Trainer(replace(parts, val=None))
    timer.at_start += [sizes.clear, trainer.ranks.restart]
    trainer.fit()
    return trainer, timer.step_s


def noted_sizes(micro_batches: Iterator[MicroBatch], sizes: list[float]) -> Iterator[MicroBatch]:
    """Note the numbers in the share that this rank gets of each batch."""
    is_new = True
    for micro in micro_batches:
        if is_new:
            sizes.append(0.0)
        sizes[-1] += sum(tensor.numel() for tensor in leaves(micro.batch))
        is_new = micro.last
        yield micro


def work_of(sizes: Sequence[Tensor]) -> tuple[float, float]:
    """Return the largest share of a batch over the mean one, step by step and over all steps.

    ``sizes`` holds for each rank 0 and the numbers in its share of each step.
    """
    num_steps = min(map(len, sizes))
    if num_steps == 1:
        return 1.0, 1.0
    numbers = torch.stack([own[1:num_steps] for own in sizes])  # [ranks, steps]
    step_work = (numbers.max(0).values / numbers.mean(0).clamp(min=1.0)).mean()
    means = numbers.mean(1)
    return float(step_work), float(means.max() / means.mean())


if __name__ == "__main__":
    run_rank(sys.argv[1], _measured)
