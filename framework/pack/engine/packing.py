"""What is to be packed, how far it is, and what became of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from framework.contracts.records import Manifest, RecordInput
from framework.errors import ConfigError
from framework.pack.engine.jobs import MakeWriter, Prepare
from framework.pack.engine.journal import Bad


@dataclass(frozen=True)
class Packing:
    """What is packed, and into what.

    ``prepare``: None: records as the input gives them. ``on_error``: fail, or skip and list bad items. ``one_file``: False: the store is
    a folder of files. ``part`` of ``parts``: do this share of the jobs only, beside other processes or machines that do the others.
    ``suffix``: of the jobs' files. ``layout``: what the writer was told, besides the path. ``make_part``: writes the jobs' files where
    ``make_writer`` makes something else than a file that can be read as a store.

    ConfigError C150 or C151 for what cannot be.
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
    layout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    make_part: MakeWriter | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise ConfigError(
                150,
                f"pack.on_error = {self.on_error}",
                "not a way to treat bad items",
                "choose fail or skip",
            )
        if self.make_part is not None and not self.one_file:
            raise ConfigError(
                150,
                "pack.one_file = False",
                "this output is no file",
                "leave it out, or choose output=hdf5 or lmdb",
            )
        where, fix = (
            f"pack.part = {self.part}, pack.parts = {self.parts}",
            "give pack.parts=N and pack.part=0..N-1",
        )
        if (
            self.parts < 1
            or (self.part is None and self.parts != 1)
            or not 0 <= (self.part or 0) < self.parts
        ):
            raise ConfigError(151, where, "not a share of the work", fix)

    def share(self, num_jobs: int) -> range:
        """The jobs to be done here."""
        part = self.part or 0
        return range(num_jobs * part // self.parts, num_jobs * (part + 1) // self.parts)


class PackProgress(NamedTuple):
    """How far it is. ``phase``: packing or joining. ``resumed``: items that were finished before this process began."""

    phase: str
    items: int
    num_items: int
    records: int
    num_bytes: int
    resumed: int


Tell = Callable[[PackProgress], None]


@dataclass(frozen=True)
class Packed:
    """What became of it. ``num_bytes``: on the disk. ``resumed``: items that were finished before this process began.

    ``manifest`` is None where ``waiting`` jobs of other parts are not done yet, or (0) where another part has finished it all.
    """

    manifest: Manifest | None
    num_items: int
    num_bytes: int = 0
    resumed: int = 0
    waiting: int = 0
    seconds: float = 0.0
    bad: Sequence[Bad] = ()
