"""Contracts for data: transforms, augmentations, and the sources of host batches."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.records import Manifest
from framework.order.batches import Order, OrderChoice, Share
from framework.order.select import Fold

# Bits of a window's flip: rows and columns are exchanged first (``TURNED``).
MIRRORED, UPSIDE_DOWN, TURNED = 1, 2, 4

RecordFunction = Callable[[dict[str, Any], int | None], dict[str, Any]]


@runtime_checkable
class KnowsLabels(Protocol):
    """A capability of an Augment or a Transform: it treats label maps differently from pictures.

    A change that moves pixels moves those of label maps by the same random numbers, writes
    ``IGNORE`` for pixels from outside the picture, and never blends them. A change of colors skips
    label maps.
    """

    def with_labels(self, labels: Sequence[str]) -> Any:
        """Return a copy that treats the fields ``labels`` as label maps.

        ConfigError C193 if the configured change cannot be applied to a label map.
        """
        ...


@runtime_checkable
class MovesPixels(Protocol):
    """A capability of an Augment: it moves pixels, but not the boxes and points on them."""

    @property
    def moves_pixels(self) -> bool: ...


@runtime_checkable
class KnowsLayout(Protocol):
    """A capability of an Augment: on a GPU it writes pixels in the layout that the model wants."""

    def with_layout(self, layout: torch.memory_format) -> Any:
        """Return a copy whose normalized pixels have this layout, if they are on a GPU."""
        ...


class Transform(Protocol):
    """The geometry of one image on the host: which window is cut, and to what size it is scaled."""

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every result in pixels; None: each has the size of its window."""
        ...

    @property
    def antialias(self) -> bool:
        """Whether shrinking averages pixels. Interpolating between neighbors is faster."""
        ...

    @property
    def num_draws(self) -> int:
        """Random numbers that ``windows`` needs per record in training."""
        ...

    @property
    def function(self) -> RecordFunction | None:
        """A picklable function that changes a record's images after they are cut, or None.

        It maps (uint8 [H, W, C] NumPy arrays by field, seed) to the same fields. It gets all fields
        in one call, so that a pair gets the same change. The seed is an int64 >= 0 that depends on
        the run's seed, the epoch and the record; it is None outside training.
        """
        ...

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        """Choose a window of each image.

        Args:
            sizes: int64 [B, 2]: height and width in pixels.
            draws: float32 [B, num_draws] in [0, 1), or None outside training.

        Returns:
            int64 [B, 5]: top, left, height, width of the stored image, and flip (a sum of
            ``MIRRORED``, ``UPSIDE_DOWN`` and ``TURNED``).
        """
        ...


@runtime_checkable
class TakesArrays(Protocol):
    """A capability of a RecordFunction: without images it gets the arrays of a record.

    Those are the fields of one shape other than (), as they are stored. Results keep the dtype.
    """

    @property
    def takes_arrays(self) -> bool: ...


@runtime_checkable
class Scales(Protocol):
    """A capability of a Transform: it scales each image to a size of its own.

    Only a composition can do so, because a step behind it must cut one size.
    """

    def scaled(self, sizes: Tensor) -> Tensor:
        """Return the (height, width) of the results of ``sizes``: both int64 [B, 2]."""
        ...


@runtime_checkable
class CutsSounds(Protocol):
    """A capability of a Transform: it cuts a window of each sound."""

    @property
    def samples(self) -> int:
        """The length of every window, in samples of each channel."""
        ...

    def starts(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return where the windows of sounds of these ``lengths`` begin: both int64 [B].

        ``draws`` as for ``windows``. Zeros follow a sound that ends before its window.
        """
        ...


@runtime_checkable
class CutsVideos(Protocol):
    """A capability of a Transform: it cuts a clip, a window of frames, of each video.

    ``windows`` chooses the part of the pictures, which is the same for all frames of a clip.
    """

    @property
    def num_frames(self) -> int:
        """The frames of every clip; 0 if videos are not cut, as by a composition without clips."""
        ...

    def frame_numbers(self, lengths: Tensor, draws: Tensor | None) -> Tensor:
        """Return the numbers of the frames that clips of videos of these lengths have.

        ``lengths`` is int64 [B], ``draws`` as for ``windows``, the result int64 [B, num_frames].
        """
        ...


def cuts_videos(transform: Transform) -> TypeGuard[CutsVideos]:
    """Return whether a transform cuts clips."""
    return isinstance(transform, CutsVideos) and transform.num_frames > 0


@runtime_checkable
class Turns(Protocol):
    """A capability of a Transform: whether it may exchange rows and columns."""

    @property
    def turns(self) -> bool: ...


def may_turn(transform: Transform) -> bool:
    """Return whether a transform may exchange rows and columns."""
    return isinstance(transform, Turns) and transform.turns


class Augment(Protocol):
    """A change of a batch on the device: a cast, normalization and, in training, random changes.

    Further capabilities: ``KnowsLabels``, ``MovesPixels``, ``KnowsLayout``, ``Exact``,
    ``Alternates``, ``NeedsUnitRange``, ``MakesUnitRange``, ``Paints`` and ``Normalizes``.
    """

    @property
    def num_draws(self) -> int:
        """Random numbers that it needs per record in training."""
        ...

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        """Return a new batch, the same on every device, and leave the given one unchanged.

        ``draws`` are float32 [B, num_draws] in [0, 1) on the device, or None outside training.
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
class Alternates(Protocol):
    """A capability of an Augment: some of its random numbers alternate from epoch to epoch.

    In even epochs it gets a record's number d of epoch 0, and in odd ones 1 - 2**-24 - d. What it
    does if d < 0.5 then happens to every record in every second epoch.
    Source: alternating flips, Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024.
    """

    @property
    def alternating(self) -> tuple[int, ...]:
        """The columns of the draws that alternate, from 0 to ``num_draws`` - 1."""
        ...


@runtime_checkable
class NeedsUnitRange(Protocol):
    """A capability of an Augment: it needs pixels that are not normalized: integers, or 0 to 1."""

    @property
    def unit_fields(self) -> tuple[str, ...]:
        """The fields whose pixels must not be normalized before."""
        ...


@runtime_checkable
class MakesUnitRange(Protocol):
    """A capability of an Augment: it makes integer pixels floats from 0 to 1."""

    @property
    def scaled_fields(self) -> tuple[str, ...]:
        """The fields whose pixels are from 0 to 1 after it, unless they are normalized."""
        ...


@runtime_checkable
class Paints(Protocol):
    """A capability of an Augment: it writes numbers of the configuration into pixels."""

    @property
    def painted_fields(self) -> tuple[str, ...]:
        """The fields that it paints over."""
        ...

    @property
    def value(self) -> Sequence[float]:
        """The numbers: one, or one per channel."""
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


def alternating_draws(augment: Augment) -> tuple[int, ...]:
    """Return the columns of an augment's draws that alternate; () if it does not say any."""
    if isinstance(augment, Alternates):
        return augment.alternating
    return ()


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


# The field of a host batch with its ``Share.keys``, if it has any: a name that no store can have.
# Whoever augments takes it out.
DRAW_KEYS = "index/keys"


def keyed(batch: Batch, share: Share) -> Batch:
    """Return the batch with what its augmentation depends on, if records come several times."""
    if share.keys is None:
        return batch
    return {**batch, DRAW_KEYS: share.keys}


# A generator, so that closing it early frees what it holds.
MicroBatches = Generator[MicroBatch, None, None]


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
    # Which passes check CRC32s: ``off``, ``first_epoch`` (until this process has ended one pass) or
    # ``always``.
    verify: str = "off"
    worker_timeout_s: float = 300.0  # how long to wait for a batch
    start_method: str | None = None  # ``fork``, ``forkserver``, ``spawn``; None: the system's
    num_cores: int = 1  # that this rank may use
    # Returns the tensors [n] of all ranks. They call it together, while sources are opened.
    gather: Callable[[Tensor], list[Tensor]] = lambda values: [values]

    def verifies(self, is_verified: bool) -> bool:
        """Return whether a pass checks its records. ``is_verified``: a pass before it has."""
        return self.verify == "always" or (self.verify == "first_epoch" and not is_verified)


# Shares of what batches hold, by name: what has the property, and all. A share is their quotient.
Content = Mapping[str, tuple[float, float]]


@runtime_checkable
class KnowsContent(Protocol):
    """A capability of a Source: it counts what its batches hold."""

    def content(self) -> Content:
        """Return the counts of the batches since the last call. Any thread may call this.

        ``padding`` counts the values of padded arrays that are padding, and all their values.
        """
        ...


def content_of(source: object) -> Content:
    """Return what a source's batches held since the last call, and {} if it does not count."""
    if isinstance(source, KnowsContent):
        return source.content()
    return {}


class Source(Protocol):
    """Records as host batches, in the order of ``order.shares``. DALI's may be on the device.

    A source owns decoding and workers. Every batch has ``index`` (int64 [B]), the records' numbers
    in the store, and ``DRAW_KEYS`` if the order has keys. Image fields are uint8 [B, C, H, W].

    Of ready batches (``data=dataloader``), only the number of steps follows ``order``, ``index``
    counts the records of an epoch, and fields are as they come.
    """

    @property
    def order(self) -> Order: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def graph_refusal(self) -> str | None:
        """Why a step with its batches cannot be captured as a CUDA graph; None if it can."""
        ...

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        """Yield the steps of an epoch from ``start`` on.

        Closing the iterator early leaves only worker processes, which stay until ``close``.
        """
        ...

    def sample(self, count: int) -> Batch:
        """Return at most ``count`` evenly spaced records as in evaluation, read in this process."""
        ...

    def stages(self) -> dict[str, float]:
        """Return the thread-seconds of each stage since the last call, over all workers.

        Any thread may call this. The stages are:

        - ``read``: bytes or rows out of the store, and the check of their CRC32; all that a Dataset
          of the user's does for its items;
        - ``decode``: from the bytes of an image file to pixels;
        - ``transform``: cut, scale, flip, call the transform's function, and write into the batch
          (raw pixels are mapped, so this is also where their memory is touched first);
        - ``collate``: join slices, and stack.

        A thread's second counts whether the thread computed or waited for a disk, a core or
        Python's lock. Time counts when its batch is delivered, and never for ``sample``. A stage
        that did not happen is missing; a source that cannot measure returns {}.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class ReadsOn(Protocol):
    """A capability of a Source: it may read on over the ends of epochs, so that nothing restarts.

    Its records are those of a store, whatever the program does meanwhile.
    """

    @property
    def reads_on(self) -> bool: ...

    @property
    def starts_processes(self) -> bool:
        """Whether the next batches need processes that do not run yet.

        Started beside a step, they would inherit locks that it holds, such as the random
        generator's, and wait for ever.
        """
        ...

    def check(self) -> None:
        """Raise DataError D117 if a file was replaced or rewritten since it was first opened."""
        ...

    def stream(self, epoch: int, start: int, steps: int) -> MicroBatches:
        """Yield ``steps`` steps from ``start`` of an epoch on, those of the next epochs included.

        Workers read no record behind them. Closing the iterator early is as for ``batches``.
        """
        ...


def reading_on(source: object) -> ReadsOn | None:
    """Return the source if it may read on over the ends of epochs."""
    return source if isinstance(source, ReadsOn) and source.reads_on else None


@runtime_checkable
class NamesRecords(Protocol):
    """A capability of a Source: it knows what the records are called."""

    def key(self, index: int) -> str:
        """Return the name under which a record was packed, or what its number means, or ""."""
        ...


def record_key(source: object, index: int) -> str:
    """Return the name of a record, or "" if the source knows none."""
    return source.key(index) if isinstance(source, NamesRecords) else ""


@runtime_checkable
class FindsRecords(NamesRecords, Protocol):
    """A capability of a Source: it reads single records, as in evaluation, and knows their keys."""

    def records(self, indices: Tensor) -> Batch:
        """Return the records at ``indices`` (int64 [B]), in that order, read in this thread."""
        ...
