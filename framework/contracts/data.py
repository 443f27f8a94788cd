"""Contracts for data: transforms, augmentations, and the sources of host batches."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.records import Manifest
from framework.contracts.waits import SlowRecords
from framework.order.batches import Order, OrderChoice, Share
from framework.order.select import Fold

# Bits of a window's flip: rows and columns are exchanged first (``TURNED``).
MIRRORED, UPSIDE_DOWN, TURNED = 1, 2, 4

# Changes a record's images after they are cut: (uint8 [H, W, C] NumPy arrays by field, seed) ->
# the same fields, in one call, so that a pair gets the same change. It is picklable. The seed, an
# int64 >= 0, depends on the run's seed, the epoch and the record; it is None outside training.
RecordFunction = Callable[[dict[str, Any], int | None], dict[str, Any]]


@runtime_checkable
class TakesArrays(Protocol):
    """A capability of a RecordFunction: without images it gets the arrays of a record.

    Those are the fields of one shape other than (), as they are stored. Results keep the dtype.
    """

    takes_arrays: bool


@runtime_checkable
class KnowsLabels(Protocol):
    """A capability of an Augment or a RecordFunction: it knows label maps from pictures.

    What moves pixels moves those of label maps by the same random numbers, writes ``IGNORE`` for
    pixels from outside the picture, and never blends. What changes colors skips label maps.
    """

    def with_labels(self, labels: Sequence[str]) -> Any:
        """Return a copy that treats the fields ``labels`` as label maps.

        ConfigError C193 if the configured change cannot be applied to a label map.
        """
        ...


class Transform:
    """The geometry of records on the host: which window is cut, and to what size it is scaled.

    A subclass names what differs from a whole image as it is stored. ``draws`` are float32
    [B, num_draws] in [0, 1) in training, else None.

    Attributes:
        size: (height, width) of every result in pixels; None: each has the size of its window.
        antialias: Whether shrinking averages pixels. Interpolating between neighbors is faster.
        num_draws: Random numbers that it needs per record in training.
        function: Changes images after they are cut, or None.
        turns: Whether it may exchange rows and columns.
        scales: Whether each image gets a size of its own, as ``scaled`` says. Only a composition
            allows it, because a step behind it must cut one size.
        samples: The length of a window of each sound, in samples of each channel; 0: whole sounds.
        num_frames: The frames of a clip of each video; 0: videos are not cut.
    """

    size: tuple[int, int] | None = None
    antialias: bool = True
    num_draws: int = 0
    function: RecordFunction | None = None
    turns: bool = False
    scales: bool = False
    samples: int = 0
    num_frames: int = 0

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        """Choose a window of each image. All frames of a clip get the same.

        ``sizes`` are height and width in pixels, int64 [B, 2]. The result is int64 [B, 5]: top,
        left, height and width in the stored image, and bits of ``MIRRORED`` to ``TURNED``.
        """
        zeros = torch.zeros(len(sizes), 1, dtype=torch.int64)
        return torch.cat([zeros, zeros, sizes, zeros], dim=1)

    def scaled(self, sizes: Tensor) -> Tensor:
        """Return the (height, width) of the results of ``sizes``: both int64 [B, 2]."""
        raise NotImplementedError

    def starts(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return where the windows of sounds of these ``lengths`` begin: both int64 [B].

        Zeros follow a sound that ends before its window.
        """
        raise NotImplementedError

    def frame_numbers(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return the frames of clips of videos of these lengths: int64 [B] -> [B, num_frames]."""
        raise NotImplementedError


class Augment(Protocol):
    """A change of a batch on the device: a cast, normalization and, in training, random changes.

    It may inherit from ``AugmentTraits``, and have the capability ``KnowsLabels``.
    """

    num_draws: int  # random numbers that it needs per record in training

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        """Return a new batch, the same on every device, and leave the given one unchanged.

        ``draws`` are float32 [B, num_draws] in [0, 1) on the device, or None outside training.
        """
        ...


class AugmentTraits:
    """What the program should know of an Augment. These are the values of one that says nothing.

    Attributes:
        exact: Whether ``compile=true`` on a GPU gives the same numbers: it depends on its arguments
            alone, and uses operators that round at once, but no exponentials or powers.
        moves_pixels: Whether it moves pixels, but not the boxes and points on them.
        alternating: Columns of the draws that alternate. In even epochs it gets a record's number d
            of epoch 0, and in odd ones 1 - 2**-24 - d. What it does if d < 0.5 then happens to
            every record in every second epoch. Source: Jordan, "94% on CIFAR-10 in 3.29 seconds on
            a single GPU", 2024.
        unit_fields: Fields whose pixels must not be normalized before: integers, or 0 to 1.
        scaled_fields: Fields whose pixels are from 0 to 1 after it, unless they are normalized.
        normalized_fields: Fields whose pixels are normalized after it.
        painted_fields: Fields into whose pixels it writes ``value``.
        value: One number, or one per channel.
    """

    exact: bool = False
    moves_pixels: bool = False
    alternating: tuple[int, ...] = ()
    unit_fields: tuple[str, ...] = ()
    scaled_fields: tuple[str, ...] = ()
    normalized_fields: tuple[str, ...] = ()
    painted_fields: tuple[str, ...] = ()
    value: tuple[float, ...] = ()

    def with_layout(self, layout: torch.memory_format) -> Any:
        """Return a copy whose normalized pixels have this layout, if they are on a GPU."""
        return self


def traits_of(augment: Augment) -> AugmentTraits:
    """Return what an augment says of itself."""
    return augment if isinstance(augment, AugmentTraits) else AugmentTraits()


def chance(name: str, value: float) -> float:
    """Return ``value`` if it is a probability, else raise ValueError."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value} is not a probability, 0 to 1")
    return value


class MicroBatch(NamedTuple):
    """The records of one forward pass; ``weight`` and ``last`` as in ``order.Share``."""

    batch: Batch
    weight: float
    last: bool


# A generator, so that closing it early frees what it holds.
MicroBatches = Generator[MicroBatch, None, None]
# The field of a host batch with its ``Share.keys``, if it has any. Whoever augments takes it out.
DRAW_KEYS = "index/keys"


def keyed(batch: Batch, share: Share) -> Batch:
    """Return the batch with what its augmentation depends on, if records come several times."""
    if share.keys is None:
        return batch
    return {**batch, DRAW_KEYS: share.keys}


@dataclass(frozen=True)
class SourceContext:
    """What a Source is given at runtime."""

    order: Callable[[int], Order]  # makes the order from the number of records
    transform: Transform
    transform_key: str = "transform"  # where it stands in the configuration, for errors
    training: bool = True  # whether random changes are applied
    order_choice: OrderChoice | None = None  # orders by facts about the records
    select: str | None = None  # an expression that records must fulfil
    fold: Fold | None = None  # the fold that validates
    val_batch_size: int | None = None  # as typed; ``order`` has it already
    seed: int = 0
    num_workers: int | None = 0  # None: one per core if images are decoded, none otherwise
    worker_kind: str | None = None  # ``thread`` or ``process``; None: what suits the source
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    collate: str = "pad"  # ragged arrays in a batch: ``pad``, ``nested`` or ``list``
    verify: str = "off"  # CRC32s: ``off``, ``always``, ``first_epoch`` (until one pass has ended)
    worker_timeout_s: float = 300.0  # how long to wait for a batch
    start_method: str | None = None  # ``fork``, ``forkserver``, ``spawn``; None: the system's
    num_cores: int = 1  # that this rank may use
    # Returns the tensors [n] of all ranks. They call it together, while sources are opened.
    gather: Callable[[Tensor], list[Tensor]] = lambda values: [values]


# Shares of what batches hold, by name: what has the property, and all. A share is their quotient.
Content = Mapping[str, tuple[float, float]]


class Source:
    """Records as host batches, in the order of ``order.shares``. DALI's may be on the device.

    A source owns decoding and workers. Every batch has ``index`` (int64 [B]), the records' numbers
    in the store, and ``DRAW_KEYS`` if the order has keys. Image fields are uint8 [B, C, H, W].

    Of ready batches (``data=dataloader``), only the number of steps follows ``order``, ``index``
    counts the records of an epoch, and fields are as they come.

    Attributes:
        graph_refusal: Why a step with its batches cannot be captured as a CUDA graph, or None.
        reads_on: Whether it has ``stream``: its records are those of a store, whatever the program
            does meanwhile, so it may read on over the ends of epochs.
        finds_records: Whether it has ``records`` and knows their keys.
    """

    order: Order
    manifest: Manifest
    graph_refusal: str | None = None
    reads_on: bool = False
    finds_records: bool = False

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        """Yield the steps of an epoch from ``start`` on.

        Closing the iterator early leaves only worker processes, which stay until ``close``.
        """
        raise NotImplementedError

    def stream(self, epoch: int, start: int, steps: int) -> MicroBatches:
        """Yield ``steps`` steps from ``start`` of an epoch on, those of the next epochs included.

        Workers read no record behind them. Closing the iterator early is as for ``batches``.
        """
        raise NotImplementedError

    @property
    def starts_processes(self) -> bool:
        """Whether the next batches need processes, which must not start beside a step."""
        return False

    def check(self) -> None:
        """Raise DataError D117 if a file was replaced or rewritten since it was first opened."""

    def sample(self, count: int) -> Batch:
        """Return at most ``count`` evenly spaced records as in evaluation, read in this process."""
        raise NotImplementedError

    def records(self, indices: Tensor) -> Batch:
        """Return the records at ``indices`` (int64 [B]) as in evaluation, read in this thread."""
        raise NotImplementedError

    def key(self, index: int) -> str:
        """Return the name under which a record was packed, or what its number means, or ""."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know; printed once."""
        return ()

    def renumber(self, labels: Any) -> None:
        """Let a ``LabelMap`` give the labels of its classes other numbers."""
        raise NotImplementedError

    def content(self) -> Content:
        """Return what the batches since the last call held. Any thread may call this.

        ``padding`` counts the values of padded arrays that are padding, and all their values.
        """
        return {}

    def stages(self) -> dict[str, float]:
        """Return the thread-seconds of each stage since the last call, over all workers.

        Any thread may call this. A stage that did not happen is missing; {} if nothing is measured.
        Waiting for a disk, a core or Python's lock counts, too. Time counts when its batch is
        delivered, and never for ``sample``. The stages are:

        - ``read``: bytes or rows out of the store, and the check of their CRC32; all that a Dataset
          of the user's does for its items;
        - ``decode``: from the bytes of an image file to pixels;
        - ``transform``: cut, scale, flip, call the transform's function, and write into the batch
          (raw pixels are mapped, so this is also where their memory is touched first);
        - ``collate``: join slices, and stack.
        """
        return {}

    @property
    def slow_batches(self) -> set[int]:
        """The numbers of the delivered batches with slow records, as ``Waits`` wants them."""
        return set()

    def slow_records(self) -> SlowRecords | None:
        """Return the slow records so far, or None if there was none. Any thread may call this."""
        return None

    def close(self) -> None:
        """End workers, and close files."""
