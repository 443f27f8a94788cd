"""Contracts for data: transforms, augmentations, and the sources that deliver host batches."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.records import Manifest
from framework.order import Order

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
    """A change of a batch on the device: a cast, normalization and, in training, random changes.

    Augments may also have the capabilities ``KnowsLabels``, ``Exact``, ``NeedsUnitRange`` and
    ``Normalizes``.
    """

    @property
    def num_draws(self) -> int:
        """Random numbers per record that it needs in training."""
        ...

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        """Return a new batch and leave the old one unchanged. Every device gives the same numbers.

        ``draws``: float32 [B, num_draws] on the batch's device, or None outside training.
        """
        ...


@runtime_checkable
class Exact(Protocol):
    """A capability of an Augment: compiled by ``compile=true`` on a GPU, it gives the same numbers.

    It depends on its arguments alone and uses torch's operators that round at once: sums, products,
    quotients, square roots, comparisons and places, but no exponentials or powers.
    """

    @property
    def exact(self) -> bool: ...


@runtime_checkable
class NeedsUnitRange(Protocol):
    """A capability of an Augment: it needs pixels that are not normalized, from 0 to 1 or uint8."""

    @property
    def unit_fields(self) -> tuple[str, ...]:
        """The fields whose pixels must not be normalized before."""
        ...


@runtime_checkable
class Normalizes(Protocol):
    """A capability of an Augment: after it, pixels are no longer from 0 to 1."""

    @property
    def normalized_fields(self) -> tuple[str, ...]:
        """The fields whose pixels are normalized after it."""
        ...


def is_exact(augment: Augment) -> bool:
    """Return whether an augment says that it is exact."""
    return isinstance(augment, Exact) and augment.exact


class MicroBatch(NamedTuple):
    """The records of one forward pass; ``weight`` and ``last`` as in ``order.Share``."""

    batch: Batch
    weight: float
    last: bool


MicroBatches = Generator[
    MicroBatch, None, None
]  # a generator, so that closing it early frees what it holds


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
