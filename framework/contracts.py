"""Paceline's contracts: the file to read first.

Four questions, four groups: **data** = how records become host batches; **loader** = when a batch is on the device;
**parallel** = how many replicas and how they talk; **precision** = how numbers are computed and stepped. Implementations are final
classes that inherit nothing; the Trainer sees only what stands here. ``tests/contract/`` checks every promise.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from framework.batch import Batch
from framework.order import Order

# ---------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class Field:
    """One named part of a record.

    ``encoding``: ``raw`` (an array of ``dtype`` and ``shape``) or ``image`` (an image file's bytes, JPEG, PNG, ...; decoded it is
    uint8 and ``shape`` is (channels, None, None)).
    """

    dtype: str
    shape: tuple[int | None, ...]
    encoding: str = "raw"


@dataclass(frozen=True)
class Manifest:
    """What a store says of itself; kept inside the store as JSON."""

    num_records: int
    fields: Mapping[str, Field]
    classes: Sequence[str] = ()
    class_counts: Sequence[int] = ()
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    schema: int = 1


Records = dict[str, Any]  # raw fields: Tensor [B, *shape]; image fields: a list of B byte buffers (memoryview or bytes)


class RecordStore(Protocol):
    """Records on disk, read by batch.

    Opened lazily, per process: picklable at any time, safe under fork, forkserver and spawn. The same path may be opened twice.
    """

    @property
    def manifest(self) -> Manifest:
        """What is inside. DataError where the file is missing, truncated, or not a store."""
        ...

    def read(self, indices: Tensor) -> Records:
        """The records at ``indices`` (int64 [B], host), in that order, repeats allowed; tensors are owned by the caller."""
        ...

    def name(self, index: int) -> str:
        """What to call record ``index`` in an error: its file, or its number."""
        ...

    def close(self) -> None:
        """Give back handles and maps; a later read opens again."""
        ...


class RecordWriter(Protocol):
    """Writes one store. What was not closed is not readable, and an old file under the same name stays until ``close``."""

    def write(self, records: Records) -> None:
        """Append records. Raw fields: numpy arrays [B, *shape]; image fields: lists of bytes."""
        ...

    def close(self, manifest: Manifest) -> None:
        """Commit: everything is on disk and under its final name when this returns."""
        ...

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``close``."""
        ...


class RecordInput(Protocol):
    """Where records come from when packing: a list of items, each turned into one record, in any process."""

    @property
    def manifest(self) -> Manifest:
        """Fields, classes and source of what will be read; DataError where there is nothing to pack."""
        ...

    def read(self, start: int, stop: int) -> Records:
        """Items ``start``..``stop`` as records for a RecordWriter; DataError names the item that is bad. Picklable, pure."""
        ...


# ------------------------------------------------------------------------------------------------------------------- data


class Transform(Protocol):
    """Geometry of one image, on the host: which window of it is cut, and to what size it is scaled. One decision, any executor."""

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) in pixels of every result; None: each keeps its window's size."""
        ...

    @property
    def num_draws(self) -> int:
        """Random numbers per record that ``windows`` wants in training."""
        ...

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        """``sizes`` int64 [B, 2] (height, width), ``draws`` float32 [B, num_draws] or None outside training ->
        int64 [B, 5]: top, left, height, width, flip (0 or 1).
        """
        ...


class Augment(Protocol):
    """What is done to a batch on the device: cast, normalize, and in training random changes with one draw per record."""

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
    """What a Source is given at runtime. ``order`` makes the order once the number of records is known."""

    order: Callable[[int], Order]
    transform: Transform
    training: bool = True
    seed: int = 0
    num_workers: int = 0
    worker_kind: str = "process"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class Source(Protocol):
    """Records as host batches (DALI on a GPU: device batches), in the order of ``order.shares``. Owns decoding and workers.

    Every batch carries ``index``: int64 [B], the records' numbers in the store. Image fields are uint8 [B, C, H, W].
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

    def close(self) -> None: ...


# ----------------------------------------------------------------------------------------------------------------- loader


class Clock(Protocol):
    """Where the time goes. The time between two marks belongs to the second one's name, so nothing is left over."""

    def mark(self, name: str) -> None:
        """What ran since the last mark was ``name``. Never synchronizes."""
        ...

    def skip(self) -> None:
        """What ran since the last mark is not counted."""
        ...

    def lap(self) -> dict[str, float]:
        """Seconds per name since the last lap; a device's clock may hand in the newest steps one lap later."""
        ...


@dataclass(frozen=True)
class LoaderContext:
    """What a Loader is given at runtime. ``augment(batch, epoch)`` finishes a batch on the device."""

    source: Source
    device: torch.device
    augment: Callable[[Batch, int], Batch]
    clock: Clock


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

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, replicated; it is on ``device`` already."""
        ...

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's model inside: its ``state_dict`` has the plain names."""
        ...

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch: gradients are exchanged in the last one only."""
        ...

    def total(self, sums: Tensor) -> Tensor:
        """Element-wise sum over all ranks; host float64 in, host float64 out."""
        ...

    def agree(self, flag: bool) -> bool:
        """True on every rank at the same call once any rank said True; called once per step."""
        ...

    def close(self) -> None: ...


class Precision(Protocol):
    """How numbers are computed and stepped."""

    def autocast(self) -> AbstractContextManager[Any]: ...

    def backward(self, loss: Tensor) -> None: ...

    def step(self, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> bool:
        """Unscale, clip, step, in this order. False: the numbers overflowed and the weights did not move."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# ---------------------------------------------------------------------------------------------- what is learned, and told


@dataclass(slots=True, eq=False)  # not frozen: that costs a microsecond at every step
class Outcome:
    """What an objective found: ``loss`` (mean over ``count`` records, 0-d), ``sums`` (tensors whose elements add up over the records:
    0-d, or a value per record, which saves summing at every step).
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
    """One line of the log. ``means``: loss and metrics per record; ``spans_s``: seconds per step and span."""

    split: str
    step: int
    epoch: int
    means: Mapping[str, float]
    records_per_s: float
    spans_s: Mapping[str, float]
    learning_rate: float | None = None


@dataclass(frozen=True)
class RunContext:
    """What a Sink is given at runtime. ``start_step`` > 0 in a resumed run: what was logged after it is void."""

    run_dir: Path
    total_steps: int
    epochs: int
    start_step: int = 0
    sample: Batch = field(default_factory=dict[str, Tensor])


class Sink(Protocol):
    """Where reports go. Only rank 0 has sinks."""

    def write(self, report: Report) -> None: ...

    def close(self) -> None: ...


class Checkpoints(Protocol):
    """Where the state of a run is kept."""

    def save(self, state: dict[str, Any], weights: dict[str, Any], best: bool) -> None:
        """Publish ``state`` for resuming, and ``weights`` (a plain ``state_dict``) as last, and as best where it is."""
        ...
