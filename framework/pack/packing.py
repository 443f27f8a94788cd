"""What is packed and into what, and the journal ``OUTPUT.parts`` of its finished jobs."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest, RecordInput, RecordWriter
from framework.errors import ConfigError, DataError
from framework.pack.split import SplitRule
from framework.system.durable import temporary_name, write_bytes, write_text

CRC = np.dtype("<u4")


class Prepare(Protocol):
    """A change of records between reading and writing, such as ``Preparation``."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    def fields(self, source: RecordInput) -> dict[str, Field]: ...

    def __call__(self, chunk: Chunk) -> Chunk: ...


class MakeWriter(Protocol):
    """A writer's class, or a function with the same arguments."""

    def __call__(
        self, path: str, *, fields: Mapping[str, Field], num_records: int
    ) -> RecordWriter: ...


@dataclass(frozen=True)
class Packing:
    """What is packed, and into what.

    Attributes:
        source: The input.
        make_writer: Makes the writer of the output.
        path: The output.
        prepare: Changes records on their way; None: they stay as the input gives them.
        on_error: ``fail`` at a bad item, or ``skip`` and list bad items.
        one_file: Whether the store is one file; if not, it is a folder of files.
        part: The share of the jobs to do, from 0, beside other processes or machines; None: all.
        parts: Number of shares.
        suffix: Suffix of the jobs' files.
        configured: The keys of the input and of the output, besides the output's path.
        make_part: Makes the writer of the jobs' files, if ``make_writer`` does not write a store.
        split: Divides the records into several stores, named after ``path``; None: one store.

    Raises:
        ConfigError: C150 for a value that is not possible, C151 for a share that is not, C245 for
            an output that cannot have splits.
    """

    source: RecordInput
    make_writer: MakeWriter
    path: str
    prepare: Prepare | None = None
    on_error: str = "fail"
    one_file: bool = True
    part: int | None = None
    parts: int = 1
    suffix: str = ""
    configured: Mapping[str, Any] = field(default_factory=dict[str, Any])
    make_part: MakeWriter | None = None
    split: SplitRule | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            where = f"pack.on_error = {self.on_error}"
            raise ConfigError(150, where, "must be fail or skip", "choose fail or skip")
        if self.make_part is not None and not self.one_file:
            fix = "leave it out, or choose output=hdf5 or lmdb"
            raise ConfigError(150, "pack.one_file = False", "this output is not a file", fix)
        is_share = 0 <= (self.part or 0) < self.parts
        if not is_share or (self.part is None and self.parts != 1):
            where = f"pack.part = {self.part}, pack.parts = {self.parts}"
            fix = "give pack.parts=N and pack.part=0..N-1"
            raise ConfigError(151, where, "is not a share of the work", fix)
        if self.split is not None and (self.make_part is not None or not self.one_file):
            where = f"pack.split = {self.split.words}, pack.one_file = {self.one_file}"
            what = "each split must be one file of records"
            fix = "choose output=hdf5 or lmdb, and leave pack.one_file out"
            raise ConfigError(245, where, what, fix)

    @property
    def paths(self) -> dict[str, str]:
        """The path of each store by the name of its split, which is empty without splits."""
        if self.split is None:
            return {"": self.path}
        return {name: self.split.path(self.path, name) for name in self.split.shares}


@dataclass(frozen=True)
class PackPlan:
    """How items are divided into jobs, of which the last may have fewer."""

    num_items: int
    items_per_job: int
    items_per_block: int
    item_bytes: float  # an estimate, from a sample, of the bytes of its records
    reads_arrays: bool = False  # whether each item is a record, and a range is read at once

    @property
    def num_jobs(self) -> int:
        return -(-self.num_items // self.items_per_job)

    def items(self, number: int) -> range:
        """Return the items of job ``number``."""
        start = number * self.items_per_job
        return range(start, min(start + self.items_per_job, self.num_items))


class PackProgress(NamedTuple):
    """The progress of a phase."""

    phase: str  # ``packing``, ``joining`` or ``checking``
    items: int  # done so far
    num_items: int
    records: int
    num_bytes: int
    resumed: int  # items that were finished before this process began


OnProgress = Callable[[PackProgress], None]


class BadItem(NamedTuple):
    """An item that was left out, and why."""

    item: int
    name: str
    error: str
    reason: str


def bad_item(item: int, name: str, error: DataError) -> BadItem:
    reason = " ".join(str(error.args[2]).split())
    return BadItem(item, name, f"{error.letter}{error.args[0]}", reason)


class PackedSplit(NamedTuple):
    """The store of a split."""

    name: str
    path: str
    num_records: int


@dataclass(frozen=True)
class Packed:
    """The outcome of a packing."""

    manifest: Manifest | None  # None: jobs of other parts are missing, or another made the store
    num_bytes: int = 0  # of the store, or of the stores of all splits
    resumed: int = 0  # items that were finished before this process began
    waiting: int = 0  # missing jobs of other parts
    seconds: float = 0.0
    bad: Sequence[BadItem] = ()
    splits: Sequence[PackedSplit] = ()


@dataclass(frozen=True)
class JobResult:
    """The outcome of a finished job. A job without records has no file."""

    number: int
    num_records: int
    num_bytes: int  # of the records
    size_bytes: int  # of the file
    sha256: str  # of the file
    stamp: str  # a hash over the names, sizes and times of the job's items
    class_counts: list[int]
    digest: str  # the SHA-256 over the CRC32s of the records
    first_key: int | None  # of records whose keys are consecutive numbers
    bad: list[BadItem]


@final
class Journal:
    """The folder of finished jobs of the output ``path``: a file and a note of each. Picklable."""

    def __init__(self, path: str, suffix: str) -> None:
        self.folder = Path(f"{path}.parts")
        self.files = self.folder / "files"
        self.suffix = suffix

    def file(self, number: int) -> Path:
        return self.files / f"{number:06d}{self.suffix}"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down ``facts``, which decide the bytes of every job."""
        write_text(self.folder / "job.json", json.dumps(facts))

    def begun(self) -> dict[str, Any] | None:
        """Return the facts of ``begin``: None if there are none, {} if they cannot be read."""
        try:
            return json.loads((self.folder / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}

    def note(self, result: JobResult, crcs: np.ndarray) -> None:
        """Write down a finished job, and the checksums of its records: uint32 [num_records]."""
        line = json.dumps(asdict(result)).encode("ascii") + b"\n"  # names may hold any bytes
        write_bytes(self._note(result.number), line + crcs.astype(CRC).tobytes())

    def crcs(self, number: int) -> np.ndarray:
        """Return the checksums that ``note`` wrote down."""
        with open(self._note(number), "rb") as file:
            file.readline()
            return np.frombuffer(file.read(), CRC)

    def done(self, number: int) -> JobResult | None:
        """Return the result of a job whose file is there in the noted size."""
        try:
            with open(self._note(number), "rb") as file:
                note: dict[str, Any] = json.loads(file.readline())
            bad: Any = [BadItem(*words) for words in note.pop("bad")]
            result = JobResult(**note, bad=bad)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        if result.num_records == 0:
            return result
        file = self.file(number)
        is_whole = file.is_file() and os.path.getsize(file) == result.size_bytes
        return result if is_whole else None

    def forget(self, number: int) -> None:
        """Remove a job's note, so that the job is done again."""
        self._note(number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder. It is renamed first, so that a half removed one is never resumed."""
        if self.folder.exists():
            doomed = temporary_name(self.folder)
            os.rename(self.folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _note(self, number: int) -> Path:
        return self.folder / f"{number:06d}.job"
