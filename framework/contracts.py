"""Paceline's contracts: the file to read first.

Four questions, four groups: **data** = how records become host batches; **loader** = when a batch is on the device;
**parallel** = how many replicas and how they talk; **precision** = how numbers are computed and stepped. Implementations are final
classes that inherit nothing; the Trainer sees only what stands here. ``tests/contract/`` checks every promise.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from framework.batch import Batch
from framework.order import Order
from framework.span import Span

# ---------------------------------------------------------------------------------------------------------------- records


KINDS = ("image", "labels", "raw")
IGNORE = 255  # a label map's value for pixels without a class; what Pascal VOC uses


@dataclass(frozen=True)
class Field:
    """One named part of a record.

    ``encoding``: ``raw`` (an array of ``dtype`` and ``shape``) or ``image`` (an image file's bytes, JPEG, PNG, ...; decoded it is
    uint8 and ``shape`` is (channels, None, None)). Raw uint8 of shape [C, H, W] or [H, W, C], C 1 or 3, are an image's pixels: whichever
    way they lie in the store, a batch has them as [B, C, H, W].

    ``kind`` says what the numbers mean: ``image`` (a picture, whose pixels may be blended), ``labels`` (a label map: a class number per
    pixel, never blended; uint8 with one channel, as a PNG or raw), or ``raw`` (anything else). Without one it is derived.
    """

    dtype: str
    shape: tuple[int | None, ...]
    encoding: str = "raw"
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", "raw" if self.channels is None else "image")

    @property
    def channels(self) -> int | None:
        """Of an image, encoded or raw; None for what is none."""
        if self.encoding == "image":
            return self.shape[0] or 3
        if self.dtype != "uint8" or len(self.shape) != 3:
            return None
        return next((size for size in (self.shape[0], self.shape[2]) if size in (1, 3)), None)

    @property
    def interleaved(self) -> bool:
        """Whether raw pixels lie as [H, W, C]: twice as fast to cut and scale as [C, H, W], which is as a model wants them."""
        return self.encoding == "raw" and self.channels is not None and self.shape[0] not in (1, 3)


@dataclass(frozen=True)
class Shard:
    """One file of a store that is a directory. ``sha256``: of the file's bytes, hexadecimal; ``digest``: of its own manifest."""

    name: str
    num_records: int
    size_bytes: int
    sha256: str
    digest: str = ""


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel of a field: of pixels in [0, 1], or of floats as they are."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Manifest:
    """What a store says of itself; kept inside the store as JSON.

    ``digest``: sha256 over the CRC32s of the records' bytes (uint32, little-endian) in order: what is stored, whatever stores it. ``shards``: the
    files of a store that is a directory, in the records' order. ``statistics``: by field, measured while packing; a store written
    before schema 3 has none.
    """

    num_records: int
    fields: Mapping[str, Field]
    classes: Sequence[str] = ()
    class_counts: Sequence[int] = ()
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    digest: str = ""
    shards: Sequence[Shard] = ()
    statistics: Mapping[str, ChannelStatistics] = field(default_factory=dict[str, ChannelStatistics])
    schema: int = 3

    @property
    def label_maps(self) -> tuple[str, ...]:
        """The names of the fields that are label maps."""
        return tuple(name for name, field in self.fields.items() if field.kind == "labels")


Records = dict[str, Any]  # raw fields: Tensor [B, *shape]; image fields: a list of B byte buffers (memoryview or bytes)


class RecordStore(Protocol):
    """Records on disk, read by batch.

    Opened lazily, per process: picklable at any time, safe under fork, forkserver and spawn. The same path may be opened twice.
    """

    @property
    def manifest(self) -> Manifest:
        """What is inside. DataError where the file is missing, truncated, or not a store."""
        ...

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """The records at ``indices`` (int64 [B], host), in that order, repeats allowed; tensors are owned by the caller.

        ``views``: raw fields for which a list of B numpy arrays in the store's own memory will do, where it has them; not to be changed.
        """
        ...

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        """Those of ``indices`` whose bytes, as ``read`` gave them, are not what their stored CRC32 says. [] where none is stored."""
        ...

    def key(self, index: int) -> str:
        """The name record ``index`` was packed under (its file, say); "" where it has none."""
        ...

    def name(self, index: int) -> str:
        """What to call record ``index`` in an error: store, number, and key where it has one."""
        ...

    def check(self) -> None:
        """DataError D117 where the files are not those that were opened first: replaced or rewritten meanwhile."""
        ...

    def close(self) -> None:
        """Give back handles and maps; a later read opens again."""
        ...


class RecordWriter(Protocol):
    """Writes one file of records. What was not closed is not readable, and an old file under the same name stays until ``close``."""

    def write(self, records: Records, keys: Sequence[str]) -> None:
        """Append records. Raw fields: numpy arrays [B, *shape]; image fields: lists of bytes. ``keys``: a name for each record."""
        ...

    def close(self, manifest: Manifest) -> None:
        """Commit, with the digest filled in: everything is on disk and under its final name when this returns."""
        ...

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``close``."""
        ...


class Chunk(NamedTuple):
    """Records on their way into a store: numpy arrays [B, *shape] for raw fields, lists of B ``bytes`` for image fields; B may be 0."""

    records: Records
    keys: list[str]


class RecordInput(Protocol):
    """Where records come from when packing: a list of items, each turned into zero or more records, in any process. Picklable."""

    @property
    def manifest(self) -> Manifest:
        """Fields, classes and source of what will be read; ``num_records`` is the number of items. DataError where there is nothing
        to pack. The order of the items does not depend on the order in which a file system lists them.
        """
        ...

    def read(self, start: int, stop: int) -> Chunk:
        """Items ``start``..``stop``, pure: the same items give the same records. DataError names the item that is bad."""
        ...

    def name(self, index: int) -> str:
        """What to call item ``index`` in an error."""
        ...


@runtime_checkable
class Notable(Protocol):
    """A part that may have something to say to the user, once. Stores, sources and inputs may be notable."""

    @property
    def notes(self) -> tuple[str, ...]: ...


def notes_of(part: object) -> tuple[str, ...]:
    """What a part has to say; () for one that is not notable."""
    return part.notes if isinstance(part, Notable) else ()


# ------------------------------------------------------------------------------------------------------------------- data


RecordFunction = Callable[[dict[str, Any], int | None], dict[str, Any]]


@runtime_checkable
class KnowsLabels(Protocol):
    """A capability of an Augment, or of a Transform's function: it treats label maps otherwise than pictures.

    What moves pixels moves label maps by the same random numbers, writes ``IGNORE`` for pixels that come from outside, and never blends
    them. What changes colors leaves them alone.
    """

    def with_labels(self, labels: Sequence[str]) -> Any:
        """A copy that knows which fields are label maps.

        Raises:
            ConfigError: C193: what it is configured to do cannot be done to a label map.

        """
        ...


class Transform(Protocol):
    """Geometry of one image, on the host: which window of it is cut, and to what size it is scaled. One decision, any executor."""

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) in pixels of every result; None: each keeps its window's size."""
        ...

    @property
    def antialias(self) -> bool:
        """Whether shrinking averages (True) or interpolates linearly between nearest pixels (False: faster, and rougher)."""
        ...

    @property
    def num_draws(self) -> int:
        """Random numbers per record that ``windows`` wants in training."""
        ...

    @property
    def function(self) -> RecordFunction | None:
        """What is done to a record's images after they are cut, or None: (uint8 [H, W, C] numpy arrays by field, seed) -> the same
        fields. All fields in one call, so that a pair gets the same change. ``seed``: int64 >= 0 that depends on (run seed, epoch,
        record); None outside training. Picklable.
        """
        ...

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        """``sizes`` int64 [B, 2] (height, width), ``draws`` float32 [B, num_draws] or None outside training ->
        int64 [B, 5]: top, left, height, width, flip (bit 0: mirrored, bit 1: upside down).
        """
        ...


class Augment(Protocol):
    """What is done to a batch on the device: cast, normalize, and in training random changes with one draw per record.

    One that also has ``exact = True`` is compiled on a GPU by ``compile=true``: a function of its arguments alone, of operations that round as
    soon as they are done (sums, products, quotients, square roots, comparisons, places), not of exponentials or powers, in torch's operators.
    """

    @property
    def num_draws(self) -> int:
        """Random numbers per record it wants in training."""
        ...

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        """A new batch, the old one unchanged; ``draws`` float32 [B, num_draws] on the batch's device, or None outside training. Same numbers on any device."""
        ...


class MicroBatch(NamedTuple):
    """The records of one forward pass; ``weight`` and ``last`` as in ``order.Share``."""

    batch: Batch
    weight: float
    last: bool


MicroBatches = Generator[MicroBatch, None, None]  # a generator, so that closing it early frees what it holds


@dataclass(frozen=True)
class SourceContext:
    """What a Source is given at runtime. ``order`` makes the order once the number of records is known.

    ``num_workers`` None: chosen from the data: a worker per core of this rank (``num_cores``) where images are decoded, none where
    records are only gathered.
    ``start_method``: of worker processes: ``fork``, ``forkserver``, ``spawn``; None: the system's. ``verify``: ``off``, ``first_epoch`` (of this process) or ``always``: compare records with their CRC32.
    """

    order: Callable[[int], Order]
    transform: Transform
    training: bool = True
    seed: int = 0
    num_workers: int | None = 0
    worker_kind: str = "process"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    verify: str = "off"
    worker_timeout_s: float = 300.0
    start_method: str | None = None
    num_cores: int = 1


class Source(Protocol):
    """Records as host batches (DALI on a GPU: device batches), in the order of ``order.shares``. Owns decoding and workers.

    Every batch carries ``index``: int64 [B], the records' numbers in the store. Image fields are uint8 [B, C, H, W].
    A batch may also hold values that are no tensors, such as a list of B strings: they reach the augmentation and the objective as they are.
    """

    @property
    def order(self) -> Order: ...

    @property
    def manifest(self) -> Manifest: ...

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        """Steps ``start``.. of an epoch. Closing the iterator early leaves no thread or file behind; processes stay until ``close``."""
        ...

    def sample(self, count: int) -> Batch:
        """``count`` records (fewer where there are fewer), evenly spaced, as evaluation sees them; read in this process."""
        ...

    def stages(self) -> dict[str, float]:
        """Where reading's time went since this was asked last: thread-seconds per stage, over all workers. From any thread.

        ``read``: bytes or rows out of the store, and comparing them with their CRC32. ``decode``: an image file's bytes to pixels.
        ``transform``: windows, scaling, flipping, the transform's function, and writing the result into the batch; of pixels stored raw,
        whose rows are only looked at before, it is the first touch of their memory too. ``collate``: joining slices, stacking.

        A thread's second counts whether it computed, or waited for a disk, a core or Python's lock. A batch's seconds count when it is
        handed over, ``sample``'s never. A stage that did not happen is left out; {} where the source cannot know.
        """
        ...

    def close(self) -> None: ...


# ----------------------------------------------------------------------------------------------------------------- loader


class Clock(Protocol):
    """Where the time goes. The time between two marks belongs to the second one's name, so nothing is left over."""

    def mark(self, name: str) -> None:
        """What ran since the last mark was ``name``; ``report`` ends a step. Never synchronizes."""
        ...

    def skip(self) -> None:
        """What ran since the last mark is not counted."""
        ...

    def spans(self) -> dict[str, Span]:
        """By name, how long the steps since the last call took; one under way counts as far as it is known. A device's clock may hand
        in the newest steps one call later, and tells ``idle``, the device's, from ``wait``, the host's. {} where the clock is off.
        """
        ...

    def lap(self) -> dict[str, float]:
        """The total seconds of ``spans``; what one has handed out, the other does not."""
        ...


@dataclass(frozen=True)
class LoaderContext:
    """What a Loader is given at runtime. ``augment(batch, epoch)`` finishes a batch on the device."""

    source: Source
    device: torch.device
    augment: Callable[[Batch, int], Batch]
    clock: Clock


class LoaderStats(NamedTuple):
    """Of the time since it was asked last. ``stages_s``: the source's ``stages``. ``ready``: host batches that lay ready when the next one
    was asked for, on average; None where none was asked for, or there is no queue. ``depth``: the most that may lie there; 0 without a queue.
    """

    stages_s: Mapping[str, float]
    ready: float | None
    depth: int


class Loader(Protocol):
    """Device batches in the source's order, safe on the current stream. Never changes what is learned, only when it is there."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps per epoch."""
        ...

    @property
    def identity(self) -> dict[str, int]:
        """What decides which records a step of an epoch holds; a run resumed inside an epoch must have the same."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of this choice on this machine; said once."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        """Steps ``start``.. of an epoch. Marks ``wait`` and ``copy``. Errors of the source surface here; an early close cleans up."""
        ...

    def stats(self) -> LoaderStats:
        """How preparing batches went since this was asked last; for the thread that takes them."""
        ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- parallel and precision


class Parallel(Protocol):
    """How many replicas, and how they talk."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def home(self) -> torch.device:
        """Where the model is made, and tried on a few records, before it is wrapped."""
        ...

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, replicated or cut into parts; it is on ``home``."""
        ...

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's model inside: its ``state_dict`` has the plain names."""
        ...

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same with plain tensors, whatever is cut into parts; asked on all ranks at once."""
        ...

    def parted(self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """A whole state of a Stepper (``model``, ``average``, ``optimizer``) cut into this rank's parts; asked on all ranks at once."""
        ...

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch: gradients are exchanged in the last one only."""
        ...

    def total(self, sums: Tensor) -> Tensor:
        """Element-wise sum over all ranks; host float64 in, host float64 out."""
        ...

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's ``values`` [n], in the ranks' order; n may differ. Host in, host out."""
        ...

    def agree(self, *flags: bool) -> list[bool]:
        """Each True on every rank at the same call once any rank said True; called once per step, always with as many."""
        ...

    def close(self) -> None: ...


class Precision(Protocol):
    """How numbers are computed and stepped."""

    def autocast(self) -> AbstractContextManager[Any]: ...

    def backward(self, loss: Tensor) -> None: ...

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None, skip_bad: bool = False) -> bool:
        """Unscale, clip, step, in this order. False: the weights did not move, because a scaled gradient overflowed or, with ``skip_bad``,
        because a gradient is not finite.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# ---------------------------------------------------------------------------------------------- what is learned, and told


@dataclass(slots=True, eq=False)  # not frozen: that costs a microsecond at every step
class Outcome:
    """What an objective found: ``loss`` (mean over ``count`` records, 0-d), ``sums`` (tensors whose elements add up over the records:
    0-d, or a value per record, which saves summing at every step). A tensor of another form is refused: ConfigError C220.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    count: int


class Objective(Protocol):
    """What is to be made small, and what is counted beside it: sums and counts, never means of means."""

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome: ...

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Whether validation means ``new`` are better than ``old``."""
        ...


class Schedule(Protocol):
    """The learning rate over the steps. Pure: the factor on the optimizer's own rate at ``step`` of ``total_steps``."""

    def __call__(self, step: int, total_steps: int) -> float: ...


@dataclass(frozen=True)
class Report:
    """One line of the log. ``means``: loss and metrics per record; ``spans``: of the steps since the last line.

    ``epoch_left``: records to the end of the epoch; ``left_s``: seconds to the end of the run, at its pace so far. ``stages_s``: where
    reading's time went, in thread-seconds per step; ``ready``: batches that lay ready when one was asked for; ``usage``: of the machine.
    These three are empty where nobody measures them. ``skipped``: steps of the run so far that left the weights as they were.
    """

    split: str
    step: int
    epoch: int
    means: Mapping[str, float]
    records_per_s: float
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])
    learning_rate: float | None = None
    epoch_left: int | None = None
    left_s: float | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict[str, float])
    ready: float | None = None
    skipped: int = 0
    usage: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class RunContext:
    """What a Sink is given at runtime. ``start_step`` > 0 in a resumed run: what was logged after it is void. ``sample``: records to look
    at; its label maps are pictures, a color for each class.
    """

    run_dir: Path
    total_steps: int
    epochs: int
    start_step: int = 0
    sample: Batch = field(default_factory=dict[str, Tensor])


class Sink(Protocol):
    """Where reports go. Only rank 0 has sinks."""

    def write(self, report: Report) -> None: ...

    def flush(self) -> None:
        """Have the disk hold what was written: a state is about to be saved, from which another run may go on."""
        ...

    def close(self) -> None: ...


class Checkpoints(Protocol):
    """Where the state of a run is kept."""

    def is_late(self) -> bool:
        """Whether it is time for a save."""
        ...

    def save(self, step: int, state: dict[str, Any], weights: dict[str, Any] | None, best: bool, final: bool) -> None:
        """Publish ``state`` for resuming, and ``weights`` (a plain ``state_dict``), where given, as last, and as best where they are.

        ResourceError where the disk refuses, and it is the ``final`` save of a run.
        """
        ...
