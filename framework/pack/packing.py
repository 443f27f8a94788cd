"""What is packed and into what, the splits, and the journal ``OUTPUT.parts`` of finished jobs."""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from framework.contracts.class_labels import is_class_number
from framework.contracts.records import LABEL, Field, Manifest, RecordInput, RecordWriter
from framework.errors import ConfigError, DataError, listed
from framework.store.foreign import pattern_of_group
from framework.system.durable import temporary_name, write_bytes, write_text

if TYPE_CHECKING:
    from framework.pack.preparation import Preparation

CRC = np.dtype("<u4")
STRATIFIED = "stratified"
SPLIT_NAME = re.compile(r"\w[\w-]*")
NUM_HASHES = 1 << 64

# Makes a writer: called with the path, and ``fields`` and ``num_records`` as keywords.
MakeWriter = Callable[..., RecordWriter]


@final
@dataclass(frozen=True)
class SplitRule:
    """How records are divided into splits, each of which becomes a store.

    A hash places each record, whatever the others are: the first 8 bytes, big-endian, of the
    SHA-256 of a text in UTF-8.

    Attributes:
        shares: The share of each split by name. All shares are positive, and 1 together.
        by: None: the hash of a record's key decides. ``stratified``: every class has the same
            shares. The name of a field, or a regular expression whose one group is searched in the
            key: records with the same value stay together.

    Raises:
        ConfigError: C240 for impossible shares, C241 for an impossible regular expression.
    """

    shares: Mapping[str, float]
    by: str | None = None

    def __post_init__(self) -> None:
        wrong = ""
        if len(self.shares) < 2 or not all(map(SPLIT_NAME.fullmatch, self.shares)):
            wrong = "must name at least two splits, with letters, digits, _ and -"
        for name, share in self.shares.items():
            if not wrong and (not isinstance(share, float) or not 0 < share < 1):
                wrong = f"the share of {name} must be a number above 0 and below 1"
        if not wrong and sum(self._exact) != 1:
            wrong = f"the shares are {float(sum(self._exact)):g} together, not 1"
        if wrong:
            fix = "give 'pack.split={train: 0.9, val: 0.1}', for example"
            raise ConfigError(240, f"pack.split = {self.words}", wrong, fix)
        _ = self.pattern

    @property
    def words(self) -> str:
        """The shares as on the command line, for messages."""
        shares = ", ".join(f"{name}: {share}" for name, share in self.shares.items())
        return f"{{{shares}}}"[:200]

    @property
    def _exact(self) -> list[Fraction]:
        return [Fraction(str(share)) for share in self.shares.values()]

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The regular expression of ``by``, if it is one."""
        if self.by is None or "(" not in self.by:
            return None
        return pattern_of_group(self.by, f"pack.split_by = {self.by}", 241)

    @property
    def field(self) -> str | None:
        """The field whose values stay together; None: the keys decide."""
        if self.by == STRATIFIED or self.pattern is not None:
            return None
        return self.by

    @property
    def notes(self) -> tuple[str, ...]:
        if self.by != LABEL:
            return ()
        words = f"pack.split_by={LABEL} puts all records of a class into one split"
        return (f"{words}; pack.split_by={STRATIFIED} gives each split its share of every class",)

    def check_fields(self, fields: Mapping[str, Field]) -> None:
        """Check that the records have the field that decides. ConfigError C242."""
        where = f"pack.split_by = {self.by}"
        kinds = {name: np.dtype(field.dtype).kind for name, field in fields.items()}
        whole = [name for name in fields if is_class_number(kinds[name], fields[name].shape)]
        if self.by == STRATIFIED and LABEL not in whole:
            what = "needs a field label with one whole number per record"
            fix = "leave it out, or name a field whose values stay together"
            raise ConfigError(242, where, what, fix)
        known = [name for name, field in fields.items() if field.kind == "text" or name in whole]
        if self.field is not None and self.field not in known:
            what = "does not name a field with a text or a whole number per record"
            choices = f"{listed(known)}, {STRATIFIED}," if known else STRATIFIED
            fix = f"choose {choices} or a regular expression with one group, such as '/(p[0-9]+)_'"
            raise ConfigError(242, where, what, fix)

    def texts(self, keys: Sequence[str], where: str) -> list[str]:
        """Return what is hashed of each record: its key, or what the pattern finds there. D243."""
        if "" in keys:
            fix = "set pack.split_by to a field"
            raise DataError(243, where, "has no key that could choose its split", fix)
        if self.pattern is None:
            return list(keys)
        texts: list[str] = []
        for key in keys:
            match = self.pattern.search(key)
            if match is None or not match.group(1):
                what = f"pack.split_by = {self.by} finds nothing in the key {key!r}"
                raise DataError(243, where, what, "correct it, or remove the item")
            texts.append(match.group(1))
        return texts

    def assign(self, hashes: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Return the number of each record's split: int64 [n].

        ``hashes`` are those of ``hashed``; ``labels``, integers [n], are for ``by=stratified``
        alone. ConfigError C244 if a split has no record.
        """
        cuts = list(accumulate(self._exact))[:-1]
        if self.by is None:
            splits = by_hash(cuts, hashes)
        elif labels is None:
            splits = by_groups(cuts, hashes)
        else:
            splits = _by_classes(self._exact, hashes, labels)
        missing = set(range(len(self.shares))) - set(np.unique(splits).tolist())
        if missing:
            name = list(self.shares)[min(missing)]
            values = "keys" if self.by in (None, STRATIFIED) else f"values of {self.by}"
            num_values = len(np.unique(hashes))
            what = f"{name} has no record: {len(hashes):,} records have {num_values:,} {values}"
            fix = f"give {name} a larger share; what has been read is kept"
            raise ConfigError(244, f"pack.split = {self.words}", what, fix)
        return splits


def hashed(texts: Iterable[bytes]) -> np.ndarray:
    """Return the hash of each text: uint64 [n]."""
    heads = b"".join(hashlib.sha256(text).digest()[:8] for text in texts)
    return np.frombuffer(heads, ">u8").astype(np.uint64)


def by_hash(cuts: Sequence[Fraction], hashes: np.ndarray) -> np.ndarray:
    """Return the split in which each hash, divided by 2**64, lies: int64 [n]."""
    limits = [min(math.ceil(cut * NUM_HASHES), NUM_HASHES - 1) for cut in cuts]
    return np.searchsorted(np.array(limits, np.uint64), hashes, side="right")


def by_groups(cuts: Sequence[Fraction], hashes: np.ndarray) -> np.ndarray:
    """Return the split of each record: int64 [n]. Records with one hash are a group.

    The records lie on a line in the order of their hashes, which the cuts divide. A group goes to
    the split in which its middle lies. So each cut misses its place by at most half a group.
    """
    _, places, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    middles = 2 * sizes.cumsum() - sizes  # in half records
    limits = [math.ceil(cut * 2 * len(hashes)) for cut in cuts]
    return np.searchsorted(limits, middles, side="right")[places]


def _by_classes(shares: Sequence[Fraction], hashes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the split of each record: int64 [n].

    The records of a class, in the order of their hashes, go to the splits in turn. Each split gets
    its exact share, rounded up where most is lacking after the classes before, else down.
    """
    splits = np.empty(len(labels), np.int64)
    order = np.lexsort((hashes, labels))
    lacks = [Fraction(0) for _ in shares]
    start = 0
    for size in np.unique(labels, return_counts=True)[1].tolist():
        counts = [math.floor(size * share) for share in shares]
        inexact = [n for n, share in enumerate(shares) if size * share != counts[n]]
        for n in inexact:
            lacks[n] += size * shares[n] - counts[n]
        inexact.sort(key=lacks.__getitem__, reverse=True)
        for n in inexact[: size - sum(counts)]:
            counts[n] += 1
            lacks[n] -= 1
        splits[order[start : start + size]] = np.repeat(np.arange(len(shares)), counts)
        start += size
    return splits


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
        ConfigError: C150, C151 for an impossible value or share, C245 for impossible splits.
    """

    source: RecordInput
    make_writer: MakeWriter
    path: str
    prepare: "Preparation | None" = None
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
            fix = "choose output=hdf5 or lmdb, and leave pack.one_file out"
            raise ConfigError(245, where, "each split must be one file of records", fix)

    @property
    def paths(self) -> dict[str, str]:
        """The path of each store, such as ``a-val.h5``, by its split's name; "" without splits."""
        if self.split is None:
            return {"": self.path}
        stem, suffix = os.path.splitext(Path(self.path))
        return {name: f"{stem}-{name}{suffix}" for name in self.split.shares}


@dataclass(frozen=True)
class PackPlan:
    """How items are divided into jobs, of which the last may have fewer."""

    num_items: int
    items_per_job: int
    items_per_block: int
    item_bytes: float  # an estimate, from a sample, of the bytes of its records

    @property
    def num_jobs(self) -> int:
        return -(-self.num_items // self.items_per_job)

    def items(self, number: int) -> range:
        start = number * self.items_per_job
        return range(start, min(start + self.items_per_job, self.num_items))


class PackProgress(NamedTuple):
    """The progress of a phase."""

    phase: str  # ``packing``, ``joining`` or ``checking``
    num_items: int
    resumed: int  # items that were finished before this process began
    items: int  # done so far
    records: int
    num_bytes: int


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

    def note_of(self, number: int) -> Path:
        """Return the path of a job's note. Without it, the job is done again."""
        return self.folder / f"{number:06d}.job"

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
        write_bytes(self.note_of(result.number), line + crcs.astype(CRC).tobytes())

    def crcs(self, number: int) -> np.ndarray:
        """Return the checksums that ``note`` wrote down."""
        with open(self.note_of(number), "rb") as file:
            file.readline()
            return np.frombuffer(file.read(), CRC)

    def done(self, number: int) -> JobResult | None:
        """Return the result of a job whose file is there in the noted size."""
        try:
            with open(self.note_of(number), "rb") as file:
                note: dict[str, Any] = json.loads(file.readline())
            bad: Any = [BadItem(*words) for words in note.pop("bad")]
            result = JobResult(**note, bad=bad)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        file = self.file(number)
        if result.num_records == 0:
            return result
        is_whole = file.is_file() and os.path.getsize(file) == result.size_bytes
        return result if is_whole else None

    def remove(self) -> None:
        """Remove the folder. It is renamed first, so that a half removed one is never resumed."""
        if self.folder.exists():
            doomed = temporary_name(self.folder)
            os.rename(self.folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
