"""Contracts for records: fields, manifests, stores, and the inputs that packing reads."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

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
    statistics: Mapping[str, ChannelStatistics] = field(
        default_factory=dict[str, ChannelStatistics]
    )
    schema: int = 3

    @property
    def label_maps(self) -> tuple[str, ...]:
        """The names of the fields that are label maps."""
        return tuple(name for name, field in self.fields.items() if field.kind == "labels")


Records = dict[
    str, Any
]  # raw fields: Tensor [B, *shape]; image fields: a list of B byte buffers (memoryview or bytes)


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
