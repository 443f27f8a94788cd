"""What rules get and give: facts about a run, its ranks or a watched script, and verdicts."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from framework.cli.arguments import quoted
from framework.contracts.span import LateRank, RankSpan, Span, shares, step_s, waiting_share
from framework.diagnosis.code_lines import Sync
from framework.measure.host import DiskRate
from framework.measure.stack_sampler import PythonLine
from framework.measure.usage import MachineUse

LEAST_LEFT = 0.01  # the share of a step that `headroom` leaves to computing, at least
LEAST_CORES = 0.05  # of training: with none it would want endlessly many, and gain endlessly
COMPUTING = ("compute", "forward", "backward", "optimizer")  # the spans in which a step computes
UNKNOWN = 0.0  # stands for a gain that nobody can predict

Shares = Mapping[str, float]  # or seconds, by name


@dataclass(frozen=True)
class Load:
    """A model of a step, to predict the gain of advice that was not tried.

    Workers divide ``load_s``; threads divide only the part that does not hold Python's lock. If
    preparing overlaps the step, the slower sets the pace, or both if the cores are too few.
    """

    load_s: float  # to prepare the records of a step in one thread
    compute_s: float  # to compute a step
    compute_cores: float  # CPU seconds per second of computing
    num_cores: int
    workers: int
    kind: str  # of workers: thread or process
    lock_share: float = 0.0  # share of preparing that holds Python's lock
    ahead: bool = False  # whether the loader reads ahead
    load_cores: float = 1.0  # CPU seconds per second of preparing
    start_s: float = 0.0  # to start workers, per step of the epoch

    @property
    def step_s(self) -> float:
        if self.workers == 0 and not self.ahead:
            return self.load_s + self.compute_s
        speedup = max(1.0, min(self.workers, self.num_cores / (self.load_cores or 1e-9)))
        if self.kind == "thread" and speedup > 1:  # Amdahl's law
            speedup = 1 / (self.lock_share + (1 - self.lock_share) / speedup)
        work_s = self.load_s * self.load_cores + self.compute_s * self.compute_cores
        return max(self.load_s / speedup, self.compute_s, work_s / self.num_cores) + self.start_s


@dataclass(frozen=True)
class Repack:
    """A store to pack before training."""

    source: str  # the input to pack from: folder or store
    targets: Mapping[str, tuple[str, str]]  # as in `Storage`
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of ``pack``
    follow_links: str | None = None  # of the folder: where symbolic links are followed

    @property
    def paths(self) -> dict[str, tuple[str, str]]:
        """By split: (what is packed, the new store)."""
        return {split: (path, f"{target}.h5") for split, (path, target) in self.targets.items()}

    def commands(self) -> list[list[str]]:
        """Return the words after ``paceline`` that pack each split."""
        commands: list[list[str]] = []
        for path, target in self.paths.values():
            words = ["pack", f"input={self.source}", f"input.path={_literal(path)}"]
            if self.follow_links is not None:
                words.append(f"input.follow_links={_literal(self.follow_links)}")
            words += [f"pack.{key}={str(v).replace(' ', '')}" for key, v in self.options.items()]
            commands.append([*words, "output=hdf5", f"output.path={_literal(target)}"])
        return commands

    def overrides(self) -> list[str]:
        """Return the overrides that make training read the new stores."""
        targets = {split: _literal(target) for split, (_, target) in self.paths.items()}
        words = ["data=hdf5", f"data.train={targets.pop('train')}"]
        val = targets.get("val", "null")
        if targets and "val" not in targets:
            sets = (f"{split.removeprefix('val.')}:{path}" for split, path in targets.items())
            val = f"{{{','.join(sets)}}}"
        return [*words, f"data.val={val}"]


def _literal(path: str) -> str:
    return path if re.fullmatch(r"[\w./-]+", path, re.ASCII) else quoted(path)


@dataclass(frozen=True)
class Storage:
    """The store that is trained on."""

    path: str
    form: str  # folder, hdf5, lmdb, dataset, or other for a store of the user
    num_records: int
    record_bytes: float
    encoding: str  # image if a field holds image files, else raw
    disk: str  # what `disk_kind` returns
    cached: float | None  # share of the bytes in the page cache
    image_size: tuple[int, int] | None = None  # (height, width) of the median sampled image
    channels: int = 3
    even: bool = False  # whether all sampled images have the same size
    # (path, free path without ending for a store packed from it) by split: ``train``, ``val`` or
    # ``val.NAME`` of several.
    targets: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    follow_links: str | None = None  # of a folder: where symbolic links are followed
    pack_words: str = ""  # of a Dataset: the command that packs it; empty if its items do not fit
    draws: bool = False  # of a Dataset: whether its items draw random numbers
    codec: str = ""  # the format of most sampled image files: jpeg, png, webp, ...
    free_bytes: float = math.inf  # on the disk that a packed store would lie on

    @property
    def num_bytes(self) -> float:
        return self.num_records * self.record_bytes

    def repack(self, **options: Any) -> Repack:
        """Return what packs the records with these options of ``pack``."""
        source = "folder" if self.form == "folder" else "store"
        return Repack(source, self.targets, options, self.follow_links)


@dataclass(frozen=True)
class RunFacts:
    """The seconds of a validation, a save and a report, and the optimizer steps between two."""

    epoch_steps: int
    validate_s: float = 0.0
    validate_every: float | None = None  # None: the run never validates
    save_s: float = 0.0  # the state alone
    save_every: Shares = field(default_factory=dict[str, float])  # by key; a validation saves, too
    report_s: Shares = field(default_factory=dict[str, float])  # by the sink's name
    report_every: int = 1

    @property
    def costs_s(self) -> dict[str, float]:
        """Seconds per step of validating, saving and reporting, on average over the run."""
        return {
            "validating": self.validate_s / (self.validate_every or math.inf),
            "saving": self.save_s * times_per_step(*self.save_every.values()),
            # Also at the end of each epoch.
            "reporting": math.fsum(self.report_s.values())
            * times_per_step(self.report_every, self.epoch_steps),
        }

    def shares(self, step_s: float) -> dict[str, float]:
        """Return the share of the run that each of them takes beside steps of ``step_s``."""
        run_s = step_s + math.fsum(self.costs_s.values())
        return {name: cost_s / run_s for name, cost_s in self.costs_s.items()}


@dataclass(frozen=True)
class Facts:
    """What was measured of a run in one process. Rates are records per second.

    Gains are measured with a change beside the same without it; 1 if it was not tried.
    """

    # The settings. Choices are named by their modules.
    batch_size: int  # of this process
    workers: int  # after null has been resolved
    kind: str  # of workers: thread or process
    loader: str
    precision: str
    # Rates of training steps on one repeated batch, of training, and of workers and loader alone.
    compute: float
    whole: float
    loader_rate: float
    # The machine.
    num_cores: int  # that this process may use
    free_memory_bytes: int  # or can be freed, after training
    memory_bytes: int = 1 << 40  # of the machine, or of the control groups if that is less
    gpu: str | None = None  # its name
    bf16: bool = False  # whether the hardware multiplies bfloat16 numbers
    use: MachineUse = field(default_factory=lambda: MachineUse(1.0))  # during training
    num_threads: int = 1  # of torch, for one operator
    fewer_threads: int = 1  # that were tried
    fewer_threads_gain: float = 1.0  # of computing
    fewer_threads_cores: float = 1.0  # that computing with them kept busy
    opencv_threads: int = 1  # of OpenCV, for one call
    no_opencv_gain: float = 1.0  # of training, without OpenCV's threads
    all_cores: int = 1  # that the machine has
    allowed_cores: int = 1  # in the affinity mask
    all_cores_gain: float = 1.0  # of training on all cores
    quota_cores: float | None = None  # of the control groups; None without a quota
    disk_rate: DiskRate | None = None  # None: no disk, or not a store with files
    # More settings.
    transform: str = "none"
    size: tuple[int, int] | None = None  # (height, width) of transformed images
    has_function: bool = False  # whether the transform calls a Python function for each record
    augment: str = "normalize"
    shuffle: bool = True
    block: int | None = None  # records per block of the block order
    staged: bool = False  # whether the store is copied into memory before the first step
    compiled: bool = False
    select: str | None = None  # the expression that chooses records
    convolutional: bool = False  # whether the model has 2-d convolutions, channels first
    # Rates of the parts. None: no such part, or not measured.
    compute_cores: float = 1.0  # cores that computing keeps busy
    other: float | None = None  # training steps on a repeated batch of another size
    other_size: int = 0  # its records
    read: float | None = None  # reading the store in one thread
    read_cores: float = 1.0  # CPU seconds per second of reading; near 0 means waiting for the disk
    prepare: float | None = None  # reading, decoding and transforming in one thread
    prepare_cores: float = 1.0  # CPU seconds per second of it
    prepare_system_cores: float = 0.0  # those of them that the system took, as for page faults
    prepare_two: float | None = None  # the same in two threads together
    two_cores: float = 2.0  # speedup of two threads without a lock, on these cores as they are
    copy: float | None = None  # from host to device
    wait: float = 0.0  # share of training spent waiting
    spread: float = 0.0  # half the interquartile range of `whole`, as a share of the median
    # Seconds per step of each span, of training and of computing alone.
    spans_s: Shares = field(default_factory=dict[str, float])
    compute_spans_s: Shares = field(default_factory=dict[str, float])
    # The user's own Python, without long operators of torch, and calls that wait for the device.
    python: Shares = field(default_factory=dict[str, float])  # shares, by the parts of `PythonLine`
    lines: tuple[PythonLine, ...] = ()  # with the largest shares, the largest first
    syncs: tuple[Sync, ...] = ()  # of one step
    storage: Storage | None = None  # None: the source makes its own records
    slow_records: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as ``slow_block``
    run: RunFacts | None = None  # None if there was no time to measure it

    @property
    def headroom(self) -> float:
        """The factor on the training rate if data cost nothing.

        It is at most what removing the waiting and the preparing from a step can bring, since other
        programs may have been busy while one of the rates was measured.
        """
        factor = 1 / (self.whole / self.compute + self.copy_share)
        if self.prepare is not None:
            data_share = self.wait + self.whole / self.prepare
            factor = min(factor, 1 / max(LEAST_LEFT, 1 - data_share))
        return max(1.0, factor)

    @property
    def data_limits(self) -> bool:
        return self.headroom > 1.03  # no measurement resolves less

    @property
    def slow_rate(self) -> float | None:
        """The rate of preparing, if it was measured and data limits training."""
        return self.prepare if self.data_limits else None

    @property
    def slow_storage(self) -> Storage | None:
        """The store, if data limits training and preparing its records was measured."""
        return self.storage if self.slow_rate else None

    @property
    def step_s(self) -> float:
        return self.batch_size / self.whole

    @property
    def copy_share(self) -> float:
        """The share of training in which batches are copied to the device and augmented."""
        return self.spans_s.get("copy", 0.0) / (sum(self.spans_s.values()) or 1.0)

    @property
    def alone_s(self) -> float:
        """Seconds in which a step computes on a batch that stays on the device."""
        return math.fsum(self.compute_spans_s.get(name, 0.0) for name in COMPUTING)

    @property
    def training_s(self) -> float:
        """Seconds in which a step of training computes, while other threads read."""
        return math.fsum(self.spans_s.get(name, 0.0) for name in COMPUTING)

    @property
    def slowed_share(self) -> float:
        """The share by which a step computes longer in training; 0 if unknown."""
        return max(0.0, self.training_s / (self.alone_s or math.inf) - 1)

    @property
    def mostly_slowed(self) -> bool:
        """Whether reading costs a step more by slowing it than by making it wait."""
        reads_ahead = self.loader != "plain" or self.workers > 0
        is_slowed = reads_ahead and self.data_limits and self.slowed_share > 0.1
        return is_slowed and self.training_s - self.alone_s > self.wait * self.step_s

    @property
    def load_s(self) -> float:
        """Seconds to prepare a batch in one thread; 0 if this was not measured."""
        return self.batch_size / (self.prepare or math.inf)

    @property
    def record_ms(self) -> float:
        return 1e3 * self.load_s / self.batch_size

    @property
    def read_share(self) -> float:
        """The share of preparing a record that reading takes; 0 if it was not measured."""
        return min(1.0, (self.prepare or 0.0) / (self.read or math.inf))

    @property
    def computing_share(self) -> float:
        """The share of training that computing alone would take."""
        return min(1.0, self.whole / self.compute)

    @property
    def fixed_share(self) -> float:
        """The share of computing that does not grow with the batch; 0 if it is not known."""
        if self.other is None or self.other_size == self.batch_size:
            return 0.0
        # From two batches: t = fixed_s + record_s * size.
        size_s, other_s = self.batch_size / self.compute, self.other_size / self.other
        record_s = (other_s - size_s) / (self.other_size - self.batch_size)
        return min(1.0, max(0.0, 1 - record_s * self.batch_size / size_s))

    @property
    def function_share(self) -> float:
        """The share of preparing a record that the transform's function takes."""
        return self.python.get("transform", 0.0) if self.has_function else 0.0

    @property
    def lock_share(self) -> float:
        """The share of preparing a record that holds Python's lock: two threads are no faster."""
        if self.prepare is None or self.prepare_two is None or self.two_cores < 1.3:
            return 0.0  # the cores are too busy for a verdict
        share = 1 - (self.prepare_two / self.prepare - 1) / (self.two_cores - 1)
        return min(1.0, max(0.0, share))

    @property
    def demand(self) -> float:
        """How many times the cores that training has its threads could use, up to all allowed."""
        wanted = min(float(self.allowed_cores), self.use.own_cores + self.use.waited_cores)
        return max(1.0, wanted / max(self.use.own_cores, LEAST_CORES))

    def computing_gain(self, factor: float) -> float:
        """Return the factor on the training rate if computing is ``factor`` times as fast."""
        return 1 / (self.computing_share / factor + 1 - self.computing_share)

    @property
    def load(self) -> Load | None:
        """The load of the present settings, or None if one thread could not be measured."""
        if not self.load_s:
            return None
        return Load(
            load_s=self.load_s,
            compute_s=self.batch_size / self.compute,
            compute_cores=min(self.compute_cores, self.num_cores),
            num_cores=self.num_cores,
            workers=self.workers,
            kind=self.kind,
            lock_share=self.lock_share,
            ahead=self.loader != "plain",
        )


@dataclass(frozen=True)
class RankFacts:
    """What the ranks of a run measured together, in steps that all of them took."""

    num_ranks: int
    num_steps: int  # that were measured
    step_s: float  # seconds of a mean step
    spans: Mapping[str, RankSpan] = field(default_factory=dict[str, RankSpan])
    late: LateRank | None = None  # the rank for which the others wait; None if there is none
    exchange_share: float = 0.0  # of the steps' time, without waiting for a rank
    waiting_share: float = 0.0  # of the steps' time, for ranks
    # The largest share of a batch, in numbers, over the mean one: in a step, and of one rank over
    # all steps. 1: all ranks have the same amount of work.
    step_work: float = 1.0
    rank_work: float = 1.0
    unsynced_s: float | None = None  # seconds of a step that exchanges no gradients; None: unknown
    sync_batch_norm: bool = False  # whether batch norm exchanges statistics in every step


@dataclass(frozen=True)
class LoaderFacts:
    """The DataLoader with which a script trains."""

    workers: int
    batch_size: int | None  # None: the Dataset makes whole batches
    pins: bool = False
    persists: bool = False  # whether workers outlive an epoch
    dataset: str = ""  # the path of its class


@dataclass(frozen=True)
class ItemFacts:
    """Items of a script's Dataset, read in this process after the script's end."""

    item_s: float  # seconds of one
    cpu_share: float  # CPU seconds per second; near 0 means waiting for the disk
    num_items: int  # of the Dataset
    item_bytes: int = 0  # of one, once decoded; 0 if it cannot be stored
    refusal: str = ""  # why the items cannot be stored; empty if they can
    decoded: tuple[int, int] | None = None  # height and width of the median decoded image
    decode_share: float = 0.0  # the share of ``item_s`` that decodes images
    size: tuple[int, int] | None = None  # height and width of the image in an item
    lines: tuple[PythonLine, ...] = ()  # with their shares of ``item_s``


@dataclass(frozen=True)
class ScriptFacts:
    """What was measured of a watched script."""

    spans: Mapping[str, Span]  # of the measured training steps
    steps: int
    records: int
    compute_cores: float  # CPU seconds per second without waiting
    num_cores: int  # that this process may use
    num_threads: int  # that torch uses for an operator
    loader: LoaderFacts | None = None
    items: ItemFacts | None = None
    gpu: str | None = None
    start_s: float = 0.0  # the median time until a measured epoch's first batch
    epochs: int = 0  # that began
    outside_s: float = 0.0  # seconds between epochs
    validation_s: float = 0.0
    before_s: float = 0.0  # seconds before the first batch was asked for
    first_s: float = 0.0  # seconds of the first step, which is not measured
    ranks: int = 1  # of the run, of which this process is the first
    others_cores: float = 0.0  # that other programs kept busy
    lines: tuple[PythonLine, ...] = ()  # with their shares of a step
    syncs: tuple[Sync, ...] = ()  # calls of one step that wait for the device

    @property
    def step_s(self) -> float:
        return step_s(self.spans) / max(1, self.steps)

    @property
    def step_records(self) -> float:
        return self.records / max(1, self.steps)

    @property
    def waiting(self) -> float:
        """The share of a step that waits for data."""
        return waiting_share({name: span.total_s for name, span in self.spans.items()}) or 0.0

    @property
    def headroom(self) -> float:
        """The factor on the rate if no step waited for data."""
        return 1 / max(LEAST_LEFT, 1 - self.waiting)

    @property
    def largest(self) -> str:
        """The span with the largest share of a step."""
        known = shares(self.spans)
        return max(known, key=lambda name: known[name], default="")

    @property
    def data_limits(self) -> bool:
        """Whether waiting for data is the largest part of a step."""
        return self.largest in ("wait", "idle")

    @property
    def load(self) -> Load:
        compute_s = self.step_s * (1 - self.waiting)
        cores = min(self.compute_cores, self.num_cores)
        load = Load(0.0, compute_s, cores, self.num_cores, workers=0, kind="process")
        if self.items is not None:
            load_s = self.items.item_s * self.step_records
            load = replace(load, load_s=load_s, load_cores=self.items.cpu_share)
        if self.loader is not None:
            load = replace(load, workers=self.loader.workers)
            if load.workers == 0:
                load = replace(load, load_s=self.step_s * self.waiting)
            elif not self.loader.persists:
                load = replace(load, start_s=self.start_s * self.epochs / max(1, self.steps))
        return load


def gain(facts: Facts | ScriptFacts, measured: bool = False, **changes: Any) -> float:
    """Return the factor on the training rate if fields of its `Load` change; at most the headroom.

    With ``measured``, the present step is as it was measured, and not as the model has it.
    """
    load = facts.load
    if load is None:
        return 1.0
    now_s = facts.step_s if measured else load.step_s
    return min(facts.headroom, now_s / max(replace(load, **changes).step_s, 1e-9))


def times_per_step(*intervals: float) -> float:
    """Return how often something happens that has these intervals; if they coincide, once."""
    known = [int(every) for every in intervals]
    if not known:
        return 0.0
    last = 1000 * min(known)
    return len({step for every in known for step in range(every, last + 1, every)}) / last


@dataclass(frozen=True)
class Verdict:
    rule: str  # the name of the cause
    says: str  # the cause, as a sentence with numbers
    why: str  # what to do and how it helps, as a sentence
    gain: float  # expected factor on the training rate; UNKNOWN if nobody can predict it
    overrides: tuple[str, ...] = ()  # of ``train``
    repack: Repack | None = None  # a store to pack first
    edit: str = ""  # a change to the user's code, if no override can do it
    action: str = ""  # what to do outside of Paceline, if no override can do it
    threads: int | None = None  # of torch, for an operator, by OMP_NUM_THREADS
    trial: tuple[str, ...] = ()  # overrides that show what an action would gain, and are no advice
    period_s: float = 0.0  # of what a run does only every so often, and the advice changes
    parts: tuple[str, ...] = ()  # of a step, that the cause slows; empty: those of its rules
    learns: bool = False  # whether the advice changes what the model learns
    tried: bool = False  # whether `gain` comes from a trial instead of the model
    modeled: float = 0.0  # the gain that the model predicts
    spread: float = 0.0  # of a tried gain
    pack_s: float = 0.0  # seconds that packing is expected to take
    disk_bytes: float = 0.0  # that the whole new training store is expected to take
    failed: str = ""  # why the advice is impossible here

    @property
    def lost(self) -> bool:
        """Whether a trial was not faster, or the model expects a slower step."""
        return self.gain <= 1 if self.tried else self.gain < 1

    @property
    def words(self) -> list[str]:
        """All overrides, including those that name a new store."""
        return [*(self.repack.overrides() if self.repack else ()), *self.overrides]

    @property
    def can_try(self) -> bool:
        """Whether this process can train as the advice says."""
        return bool(self.words) or self.threads is not None

    @property
    def is_advice(self) -> bool:
        return self.can_try or bool(self.edit or self.action)


def times(factor: float, digits: int = 1) -> str:
    """Return a factor in words: ``2.4 times``, or ``31 times``."""
    return f"{factor:.{digits if factor < 10 else 0}f} times"
