"""The description of a packing, its progress, and its outcome."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from framework.contracts.records import Manifest, RecordInput
from framework.errors import ConfigError
from framework.pack.engine.jobs import MakeWriter, Prepare
from framework.pack.engine.journal import BadItem
from framework.pack.split import MARK, SplitRule


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
            an output that cannot have splits, C246 for a path with ``{split}`` without splits.
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
        self._check_split()

    def _check_split(self) -> None:
        if self.split is None:
            if MARK in self.path:
                fix = "add 'pack.split={train: 0.9, val: 0.1}', or choose another path"
                raise ConfigError(246, f"output.path = {self.path}", "there is no split", fix)
            return
        if self.make_part is not None:
            where = f"pack.split = {self.split.words}"
            what = "this output is not a file"
            raise ConfigError(245, where, what, "choose output=hdf5 or lmdb")
        if not self.one_file:
            where = f"pack.split = {self.split.words}, pack.one_file = False"
            what = "each split is one file"
            raise ConfigError(245, where, what, "leave pack.one_file out")

    @property
    def paths(self) -> dict[str, str]:
        """The path of each store by the name of its split, which is empty without splits."""
        if self.split is None:
            return {"": self.path}
        return {name: self.split.path(self.path, name) for name in self.split.shares}

    @property
    def shared_path(self) -> str:
        """The path, without its ending, of the journal, the lock and the list of bad items."""
        if self.split is None:
            return self.path
        return self.split.shared_path(self.path)

    def share(self, num_jobs: int) -> range:
        """Return the jobs of this share."""
        part = self.part or 0
        return range(num_jobs * part // self.parts, num_jobs * (part + 1) // self.parts)


class PackProgress(NamedTuple):
    """The progress of a phase."""

    phase: str  # ``packing``, ``joining`` or ``checking``
    items: int  # done so far
    num_items: int
    records: int
    num_bytes: int
    resumed: int  # items that were finished before this process began


OnProgress = Callable[[PackProgress], None]


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
