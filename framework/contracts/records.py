"""Contracts for records: fields, manifests, stores, and the inputs that packing reads."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from framework.system.user_code import CodeDigest, files_digest

KINDS = ("image", "labels", "audio", "video", "text", "bytes", "boxes", "points", "raw")
CARRIED = ("text", "bytes")  # kinds that are lists in a batch, and stay on the host
IGNORE = 255  # a label map's value for pixels without a class, as in Pascal VOC
SCHEMA = 6  # of a manifest's text; others are not read
BLOCK_RECORDS = 1024  # read at a time from a store that has no columns
LABEL = "label"  # the field whose numbers stand for the classes


@dataclass(frozen=True)
class Field:
    """One named part of a record.

    Raw uint8 arrays [C, H, W] or [H, W, C] with 1 or 3 channels are the pixels of an image. Either
    layout becomes [B, C, H, W] in a batch.

    Attributes:
        dtype: NumPy name, such as ``uint8``.
        shape: Of one record. An encoded image has (channels, None, None), and a ragged array, whose
            records differ in their number of rows, (None, *rest). A video has (None, height, width,
            channels), or (None, None, None, channels) if its frames are image files.
        encoding: ``raw`` (an array), ``ragged`` (also a raw array whose first size is None),
            ``image`` (the bytes of an image file, decoded to uint8) or ``frames`` (the bytes of a
            video's frames, as ``framework.media.sound_video`` has them).
        kind: What the numbers mean, derived from the other attributes if it is empty.
            ``image``: a picture, whose pixels may be blended.
            ``labels``: a label map, with one class number per pixel, never blended; uint8 with one
            channel.
            ``audio``: a WAV or FLAC file as it is; ragged uint8 (None,).
            ``video``: frames in their order. Before packing, the bytes of a video file.
            ``text``, ``bytes``: a string, as UTF-8 or as it is; ragged uint8 (None,).
            ``boxes``: left, top, right and bottom in pixels of the record's image, each from 0 at
            the image's left and upper edge; ragged float32 (None, 4). A row without area is no box.
            ``points``: x, y, and perhaps the visibility of COCO (0: not labeled); float32, with a
            last size of 2 or 3, and often ragged.
            ``raw``: anything else.
    """

    dtype: str
    shape: tuple[int | None, ...]
    encoding: str = "raw"
    kind: str = ""

    def __post_init__(self) -> None:
        if self.encoding == "raw" and self.shape and self.shape[0] is None:
            object.__setattr__(self, "encoding", "ragged")
        if not self.kind:
            kind = "raw" if self.channels is None else "image"
            object.__setattr__(self, "kind", {"frames": "video"}.get(self.encoding, kind))

    @cached_property
    def channels(self) -> int | None:
        """The number of channels of an image, encoded or raw; None for any other field."""
        if self.encoding == "image":
            return self.shape[0] or 3
        if self.encoding != "raw" or self.dtype != "uint8" or len(self.shape) != 3:
            return None
        return next((size for size in (self.shape[0], self.shape[2]) if size in (1, 3)), None)

    @property
    def frame(self) -> "Field":
        """The field of one frame of a video: an image file, or raw pixels [H, W, C]."""
        *size, channels = self.shape[1:]
        if None in size:
            return Field("uint8", (channels, None, None), "image")
        return Field("uint8", (*size, channels))

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row of a ragged array."""
        return tuple(size or 0 for size in self.shape[1:])

    @property
    def interleaved(self) -> bool:
        """Whether raw pixels are stored as [H, W, C], which is cut and scaled twice as fast."""
        return self.encoding == "raw" and self.channels is not None and self.shape[0] not in (1, 3)


@dataclass(frozen=True)
class Shard:
    """One file of a store that is a directory."""

    name: str
    num_records: int
    size_bytes: int
    sha256: str  # of the file's bytes, in hexadecimal
    digest: str = ""  # from the file's manifest


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation per channel: of pixels scaled to [0, 1], or of floats as is."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Manifest:
    """The description of a store, kept inside it as JSON.

    ``digest`` is the SHA-256 over the CRC32 (uint32, little-endian) of the records' bytes, in
    order, for any kind of store. Files that were not packed have one of their names and samples.
    """

    num_records: int
    fields: Mapping[str, Field]  # of a record, by name
    classes: Sequence[str] = ()  # names by class number
    class_counts: Sequence[int] = ()  # records per class
    source: str = ""  # where the records come from
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # how it was packed
    digest: str = ""
    shards: Sequence[Shard] = ()  # files of a store that is a directory, in the records' order
    statistics: Mapping[str, ChannelStatistics] = field(default_factory=dict[str, Any])  # by field
    first_key: int | None = None  # the keys are the numbers from it on; None: they are stored
    schema: int = SCHEMA

    @property
    def label_maps(self) -> tuple[str, ...]:
        """The names of the fields that are label maps."""
        return tuple(name for name, field in self.fields.items() if field.kind == "labels")

    @property
    def gray(self) -> dict[str, Field]:
        """The fields that are files of gray pictures."""
        of_gray = ("image", "image", 1)
        return {n: f for n, f in self.fields.items() if (f.encoding, f.kind, f.channels) == of_gray}


class Ragged(NamedTuple):
    """The arrays of B records, which have different numbers of rows."""

    values: Tensor  # the rows of all records one after another: [total, *rest]
    lengths: Tensor  # rows of each record: int64 [B]

    def arrays(self) -> list[np.ndarray]:
        """Return the array of each record, a view of the values."""
        ends = self.lengths.cumsum(0).tolist()
        values = self.values.numpy()
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def joined(parts: Sequence[Any]) -> Any:
    """Return the values of a field from several places, one after another."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Ragged):
        values = torch.cat([part.values for part in parts])
        return Ragged(values, torch.cat([part.lengths for part in parts]))
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [value for part in parts for value in part]


@final
@dataclass(eq=False)
class Placed(Sequence[Any]):
    """Byte buffers, or arrays of one layout, in one memory.

    Compiled functions take a slice of them by their places, so that Python makes no object of each.
    """

    base: int  # the address of the memory
    starts: np.ndarray  # where each begins in it: int64 [B]
    lengths: np.ndarray  # the bytes of each: int64 [B]
    view: Callable[[int, int], Any]  # returns what begins at a place and has so many bytes

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Any]:
        return map(self.view, self.starts.tolist(), self.lengths.tolist())

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Placed(self.base, self.starts[place], self.lengths[place], self.view)
        return self.view(int(self.starts[place]), int(self.lengths[place]))


# Raw fields: Tensor [B, *shape]. Ragged fields: Ragged. Fields of images and videos: a list of B
# byte buffers (memoryview or bytes), or Placed.
Records = dict[str, Any]


class Places(NamedTuple):
    """Where the raw fields of B records lie in a store's files."""

    files: Tensor  # the number of each record's file: int64 [B]
    starts: dict[str, Tensor]  # by field, the byte of its file where each value begins: int64 [B]


class RecordStore(ABC):
    """Records on disk, read by batch.

    A store opens its files lazily in each process, so it can be pickled at any time and is safe
    under fork, forkserver and spawn. The same path may be opened twice.

    Attributes:
        paths: The files in which ``places`` locates values.
        has_columns: Whether ``column`` and ``lengths`` read one field without the others.
        times_records: Whether ``read_timed`` reads each record by itself, and measures it.
        reads_starts: Whether ``read_start`` reads the start of an image file alone.
        samples_colors: Whether a field's images are called gray, or in color, because a sample of
            them is. Images in color, outside the sample of a gray field, must not be read as gray.
    """

    has_columns: bool = False
    times_records: bool = False
    reads_starts: bool = False
    samples_colors: bool = False
    _manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """The store's description. DataError if the file is missing, truncated, or no store."""
        if self._manifest is None:
            self._manifest = self.described()
        return self._manifest

    def described(self) -> Manifest:
        """Return what ``manifest`` is from the first time on that it is asked for."""
        raise NotImplementedError

    @property
    def paths(self) -> Sequence[str]:
        return ()

    @abstractmethod
    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Return the records at ``indices``, int64 [B] on the host, in that order.

        Indices may repeat. The caller owns the tensors. Raw fields in ``views`` may come as a list,
        or Placed, of B read-only NumPy arrays in the store's memory.
        """

    def read_timed(self, indices: Tensor, seconds: "memoryview[float]") -> Records:
        """Read as ``read`` does. Add what each record took to ``seconds``: float64 [B]."""
        return self.read(indices)

    def read_start(self, index: int, num_bytes: int) -> bytes:
        """Return the first ``num_bytes`` of a record's image file, or all if it is shorter."""
        raise NotImplementedError

    def column(self, name: str) -> Any:
        """Return a field of all records, as ``read`` does."""
        blocks = torch.arange(self.manifest.num_records).split(BLOCK_RECORDS)
        return joined([self.read(block)[name] for block in blocks])

    def lengths(self, name: str) -> Tensor:
        """Return the rows of each record of a ragged field: int64 [num_records]."""
        return self.column(name).lengths

    def places(self, indices: Tensor) -> Places:
        """Return where records (int64 [B]) lie in ``paths``. IndexError if one does not exist.

        Fields whose values do not lie in one piece each are left out.
        """
        return Places(torch.zeros_like(indices), {})

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        """Return the ``indices`` whose ``records`` differ from their stored CRC32, if any."""
        return []

    @abstractmethod
    def key(self, index: int) -> str:
        """Return the name under which a record was packed, such as its file's, or ""."""

    def keys(self, indices: Tensor) -> list[str]:
        """Return the keys of several records."""
        return [self.key(index) for index in indices.tolist()]

    @abstractmethod
    def name(self, index: int) -> str:
        """Return a record's name for errors: store, number, and key if there is one."""

    def check(self) -> None:  # noqa: B027  # most stores keep no file open
        """Raise DataError D117 if a file was replaced or rewritten since it was first opened."""

    def close(self) -> None:  # noqa: B027
        """Release handles and maps. A later read opens them again."""


class RecordWriter(Protocol):
    """Writes a file that is readable only after ``close``. An older one stays until then."""

    def write(self, records: Records, keys: Sequence[str]) -> None:
        """Append records, with a name for each.

        A file of our own does not store ``NumberKeys``. Then the keys of every call must be some,
        and continue those of the call before. Raw fields are NumPy arrays [B, *shape], ragged
        fields lists of B NumPy arrays, and fields of images and videos lists of B ``bytes``.
        """

    def close(self, manifest: Manifest) -> None:
        """Add the digest and the first key if keys are numbers, and publish the file."""

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``close``."""


@final
class NumberKeys(Sequence[str]):
    """Keys that are the numbers ``start`` to ``stop``, without a string for each."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, place: Any) -> Any:
        numbers = range(self.start, self.stop)[place]
        return list(map(str, numbers)) if isinstance(numbers, range) else str(numbers)


def joined_keys(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return all keys: consecutive numbers if the parts are, else a list."""
    runs = [part for part in parts if isinstance(part, NumberKeys)]
    follow = all(first.stop == second.start for first, second in pairwise(runs))
    if parts and len(runs) == len(parts) and follow:
        return NumberKeys(runs[0].start, runs[-1].stop)
    return list(chain.from_iterable(parts))


class Chunk(NamedTuple):
    """Records for a store, as ``RecordWriter.write`` takes them. B may be 0."""

    records: Records
    keys: Sequence[str]


class RecordInput(Protocol):
    """Where records come from when packing: items that each become zero or more records.

    An input is picklable, and any process may read any item.
    """

    @property
    def manifest(self) -> Manifest:
        """Fields, classes and source of the records; ``num_records`` is the number of items.

        The order of the items does not depend on the order in which a file system lists them.
        DataError if there is nothing to pack.
        """
        ...

    def read(self, start: int, stop: int) -> Chunk:
        """Return the records of items ``start`` to ``stop``. The same items give the same records.

        DataError, which names the item, for a bad one.
        """
        ...

    def name(self, index: int) -> str:
        """Return an item's name for errors."""
        ...


class InputTraits:
    """What packing should know of an input. These are the answers of one that says nothing.

    Attributes:
        file_per_record: Whether each item is one record, read from files of its own. ``key`` then
            gives a record's key without reading it, and several threads may read items.
        skip_bad: Whether the error of a bad item that is found before the first one is read is
            raised when that item is read, so that a caller can skip it.
        own_code: The digest of the user's code, before its first use; None: of the input's module.
    """

    file_per_record: bool = False
    skip_bad: bool = False
    own_code: CodeDigest | None = None

    def key(self, index: int) -> str:
        """Return the key of the record of an item."""
        return str(index)

    def item_files(self, index: int) -> Sequence[str]:
        """Return the paths of all files that decide an item's records, whole or in part."""
        return ()

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        """Return the files of a range of items that are records and are read at once, or None."""
        return None


def input_traits(source: object) -> InputTraits:
    """Return what an input says of itself."""
    return source if isinstance(source, InputTraits) else InputTraits()


def code_of(source: object) -> CodeDigest:
    """Return the digest of the code of an input: by default of its module."""
    if isinstance(source, InputTraits) and source.own_code is not None:
        return source.own_code
    return CodeDigest(files_digest([type(source).__module__]))


def is_numbered(classes: Sequence[str]) -> bool:
    """Return whether the names of the classes are their numbers, as with plain integer labels."""
    return all(name == str(number) for number, name in enumerate(classes))


@runtime_checkable
class Notable(Protocol):
    """A store or an input with notes for the user, printed once."""

    @property
    def notes(self) -> tuple[str, ...]: ...


def notes_of(part: object) -> tuple[str, ...]:
    """Return a part's notes, and () for a part without any."""
    return part.notes if isinstance(part, Notable) else ()
