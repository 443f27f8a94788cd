"""Facts that the diagnosis rules use: machine, store, settings, and the rate of each part.

A subject with facts of its own has them in a dataclass in a file of its own, and a field in
`DiagnosisFacts`, which is None if nothing was measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from framework.commands.diagnose.device_syncs import Sync
from framework.commands.diagnose.host_python import HostPython
from framework.commands.diagnose.machine_facts import MachineFacts
from framework.commands.diagnose.run_facts import RunFacts

# With a smaller headroom data is not the problem. Measurements cannot resolve less.
DATA_GAIN = 1.03
# With a smaller speedup of two free threads, the cores are too busy to judge a lock.
LEAST_TWO = 1.3
# If other programs want a larger share of the cores, the figures are rough.
BUSY = 0.5
# Batches of fewer records are tiny: the fixed cost of a step may be most of it.
TINY = 8
# The share of a step that `headroom` leaves to computing, at least.
LEAST_LEFT = 0.01
# The spans in which a step computes. With less reading beside them, they vary by this share.
COMPUTING = ("compute", "forward", "backward", "optimizer")
SLOWED = 0.1


@dataclass(frozen=True)
class Machine:
    num_cores: int  # that this process may use
    memory_bytes: int  # free, or can be freed
    gpu: str | None = None  # its name
    bf16: bool = False  # whether the hardware multiplies bfloat16 numbers
    load: float = 0.0  # cores that programs wanted in the minute before the diagnosis

    @property
    def busy(self) -> bool:
        """Whether other programs make the figures rough."""
        return self.load > BUSY * self.num_cores


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
    chunk_records: int | None = None  # records per compressed chunk
    target: str = ""  # a free path, without ending, for a store packed from this one
    # Paths of the validation stores, and free paths, without ending, for packed ones, by split:
    # ``val``, or ``val.NAME`` of several.
    val: Mapping[str, str] = field(default_factory=dict[str, str])
    val_targets: Mapping[str, str] = field(default_factory=dict[str, str])
    follow_links: str | None = None  # of a folder: where symbolic links are followed
    pack_words: str = ""  # of a Dataset: the command that packs it; empty if its items do not fit
    draws: bool = False  # of a Dataset: whether its items draw random numbers
    codec: str = ""  # the format of most sampled image files: jpeg, png, webp, ...
    free_bytes: float = math.inf  # on the disk that a packed store would lie on

    @property
    def num_bytes(self) -> float:
        return self.num_records * self.record_bytes

    @property
    def can_repack(self) -> bool:
        return self.form != "other" and bool(self.target)


@dataclass(frozen=True)
class Settings:
    """The settings that rules depend on. Choices are named by their modules."""

    batch_size: int  # of this process
    workers: int  # after null has been resolved
    kind: str  # of workers: thread or process
    loader: str
    precision: str
    transform: str = "none"
    size: tuple[int, int] | None = None  # (height, width) of transformed images
    has_function: bool = False  # whether the transform calls a Python function for each record
    augment: str = "normalize"
    shuffle: bool = True
    block: int | None = None  # records per block of the block order
    staged: bool = False  # whether the store is copied into memory before the first step
    compiled: bool = False
    select: str | None = None  # the expression that chooses records


@dataclass(frozen=True)
class Rates:
    """Records per second of each part alone and of all parts together. None: no such part."""

    compute: float  # training steps on one repeated batch
    whole: float  # training
    loader: float  # workers and loader, without training
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
    prepare_plain: float | None = None  # preparing with a function that does nothing
    copy: float | None = None  # from host to device
    wait: float = 0.0  # share of training spent waiting
    # Seconds per step of each span, of training and of computing alone.
    spans_s: Mapping[str, float] = field(default_factory=dict[str, float])
    compute_spans_s: Mapping[str, float] = field(default_factory=dict[str, float])
    spread: float = 0.0  # half the interquartile range of `whole`, as a share of the median


@dataclass(frozen=True)
class DiagnosisFacts:
    machine: Machine
    settings: Settings
    rates: Rates
    storage: Storage | None = None  # None: the source makes its own records
    convolutional: bool = False  # whether the model has 2-d convolutions, channels first
    python: HostPython | None = None
    on_machine: MachineFacts | None = None
    slow_records: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as ``slow_block``
    on_run: RunFacts | None = None
    syncs: tuple[Sync, ...] = ()  # calls of the user that wait for the device, in one step

    @property
    def headroom(self) -> float:
        """The factor on the training rate if data cost nothing.

        It is at most what removing the waiting and the preparing from a step can bring: other
        programs may have been busy while only one of the two rates was measured.
        """
        rates = self.rates
        factor = 1 / (rates.whole / rates.compute + self.copy_share)
        if rates.prepare is not None:
            data_share = rates.wait + rates.whole / rates.prepare
            factor = min(factor, 1 / max(LEAST_LEFT, 1 - data_share))
        return max(1.0, factor)

    @property
    def data_limits(self) -> bool:
        return self.headroom > DATA_GAIN

    @property
    def slow_rate(self) -> float | None:
        """The rate of preparing, if it was measured and data limits training."""
        return self.rates.prepare if self.data_limits else None

    @property
    def slow_storage(self) -> Storage | None:
        """The store, if data limits training and preparing its records was measured."""
        return self.storage if self.slow_rate else None

    @property
    def cuda(self) -> bool:
        return self.machine.gpu is not None

    @property
    def copy_share(self) -> float:
        """The share of training in which batches are copied to the device and augmented."""
        spans_s = self.rates.spans_s
        return spans_s.get("copy", 0.0) / (sum(spans_s.values()) or 1.0)

    @property
    def alone_s(self) -> float:
        """Seconds in which a step computes on a batch that stays on the device."""
        return _computing_s(self.rates.compute_spans_s)

    @property
    def beside_s(self) -> float:
        """Seconds in which a step of training computes, while other threads read."""
        return _computing_s(self.rates.spans_s)

    @property
    def slowed_share(self) -> float:
        """The share by which a step computes longer in training; 0 if unknown."""
        return max(0.0, self.beside_s / self.alone_s - 1) if self.alone_s else 0.0

    @property
    def mostly_slowed(self) -> bool:
        """Whether reading costs a step more by slowing it than by making it wait.

        Without workers and a loader's thread, nothing is read beside the step.
        """
        if self.settings.loader == "plain" and not self.settings.workers:
            return False
        slowed_s = self.slowed_share * self.alone_s
        waiting_s = self.rates.wait * self.step_ms(self.rates.whole) / 1e3
        return self.data_limits and self.slowed_share > SLOWED and slowed_s > waiting_s

    @property
    def load_s(self) -> float:
        """Seconds to prepare a batch in one thread; 0 if this was not measured."""
        return self.settings.batch_size / (self.rates.prepare or math.inf)

    @property
    def work_s(self) -> float:
        """The part of ``load_s`` that computes. The rest waits for the disk."""
        return self.load_s * min(1.0, self.rates.prepare_cores)

    @property
    def computing_share(self) -> float:
        """The share of training that computing alone would take."""
        return min(1.0, self.rates.whole / self.rates.compute)

    @property
    def function_share(self) -> float:
        """The share of preparing a record that the transform's function takes."""
        rates = self.rates
        if rates.prepare is None or rates.prepare_plain is None:
            return 0.0
        return max(0.0, 1 - rates.prepare / rates.prepare_plain)

    @property
    def lock_share(self) -> float:
        """The share of preparing a record that holds Python's lock.

        It is 0 if two threads are twice as fast as one, and 1 if they are no faster.
        """
        rates = self.rates
        if rates.prepare is None or rates.prepare_two is None or rates.two_cores < LEAST_TWO:
            return 0.0
        speedup = rates.prepare_two / rates.prepare
        share = 1 - (speedup - 1) / (rates.two_cores - 1)
        return min(1.0, max(0.0, share))

    def step_ms(self, rate: float) -> float:
        """Return milliseconds per batch at ``rate`` records per second."""
        return 1e3 * self.settings.batch_size / rate


def _computing_s(spans_s: Mapping[str, float]) -> float:
    return math.fsum(spans_s.get(name, 0.0) for name in COMPUTING)


@dataclass(frozen=True)
class Load:
    """A model of a step, to predict the gain of advice that was not tried.

    Workers divide ``load_s``, up to the number of cores; threads divide only the part that does not
    hold Python's lock. Preparing overlaps the step if there are workers or the loader reads ahead.
    The slower of the two then sets the pace, or the sum of both if the cores are too few.
    """

    load_s: float  # to prepare the records of a step in one thread
    compute_s: float  # to compute a step
    compute_cores: float  # CPU seconds per second of computing
    num_cores: int
    workers: int
    kind: str  # of workers: thread or process
    lock_share: float  # share of preparing that holds Python's lock
    ahead: bool  # whether the loader reads ahead

    @property
    def step_s(self) -> float:
        if self.workers == 0 and not self.ahead:
            return self.load_s + self.compute_s
        work_s = self.load_s + self.compute_s * self.compute_cores
        return max(self.load_s / self._speedup, self.compute_s, work_s / self.num_cores)

    @property
    def _speedup(self) -> float:
        """How many times as fast as one thread the workers are."""
        workers = max(1, min(self.workers, self.num_cores))
        if self.kind == "process" or workers == 1:
            return workers
        return 1 / (self.lock_share + (1 - self.lock_share) / workers)  # Amdahl's law


def load_of(facts: DiagnosisFacts) -> Load | None:
    """Return the load of the present settings, or None if one thread could not be measured."""
    settings = facts.settings
    num_cores = facts.machine.num_cores
    if not facts.load_s:
        return None
    return Load(
        load_s=facts.load_s,
        compute_s=settings.batch_size / facts.rates.compute,
        compute_cores=min(facts.rates.compute_cores, num_cores),
        num_cores=num_cores,
        workers=settings.workers,
        kind=settings.kind,
        lock_share=facts.lock_share,
        ahead=settings.loader != "plain",
    )


def gain(facts: DiagnosisFacts, **changes: object) -> float:
    """Return the factor on the training rate if fields of `Load` change, at most the headroom."""
    load = load_of(facts)
    if load is None:
        return 1.0
    return min(facts.headroom, load.step_s / replace(load, **changes).step_s)


def gain_of_measured(facts: DiagnosisFacts, **changes: object) -> float:
    """Return the factor as ``gain`` does, over the step as it was measured.

    For what the model does not know of the present settings, and leaves out of the new ones.
    """
    load = load_of(facts)
    if load is None:
        return 1.0
    step_s = facts.settings.batch_size / facts.rates.whole
    return min(facts.headroom, step_s / replace(load, **changes).step_s)


def computing_gain(facts: DiagnosisFacts, factor: float) -> float:
    """Return the factor on the training rate if computing is ``factor`` times as fast."""
    share = facts.computing_share
    return 1 / (share / factor + 1 - share)
