"""What can be chosen about reading: workers, their kind, the loader, its depth; and which of that means anything here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from framework.config.assemble import Assembly
from framework.data.dali import DALISource
from framework.data.source import StoreSource
from framework.data.synthetic import SyntheticSource

Config = dict[str, Any]
DEPTHS = (1, 2, 4, 8)  # batches ready ahead of the step
GATHERERS = (
    0,
    1,
    2,
)  # threads for records that are only gathered: two read no more than one, but may read ahead


class Candidate(NamedTuple):
    """One set of choices. ``kind`` is ``thread`` where there are no workers; ``depth`` is 0 where the loader has none."""

    num_workers: int
    kind: str
    loader: str
    depth: int

    @property
    def words(self) -> tuple[str, ...]:
        """As overrides of ``paceline train``."""
        depth = (f"loader.depth={self.depth}",) if self.depth else ()
        kind = (f"workers.kind={self.kind}",) if self.num_workers else ()
        return (f"workers.num={self.num_workers}", *kind, f"loader={self.loader}", *depth)

    def __str__(self) -> str:
        plural = "" if self.num_workers == 1 else {"thread": "s", "process": "es"}[self.kind]
        workers = f"{self.num_workers} {self.kind}{plural}" if self.num_workers else "no workers"
        return f"{workers}, {self.loader}{f' depth {self.depth}' if self.depth else ''}"


@dataclass(frozen=True)
class CandidateFacts:
    """What decides which candidates mean anything. ``decodes``: reading is more than gathering. ``kinds``: of workers, if any."""

    num_cores: int
    cuda: bool
    decodes: bool
    kinds: tuple[str, ...]
    num_workers: int  # as the present settings have them, where null was resolved
    num_steps: int  # of an epoch


def facts_of(assembly: Assembly, num_cores: int) -> CandidateFacts:
    """The facts of a run's parts. A Source of the user's own is taken to decode."""
    source: Any = assembly.train_source
    cuda = assembly.device.type == "cuda"
    num, num_steps = assembly.config["workers"]["num"], assembly.train.num_steps
    if isinstance(source, StoreSource):
        decodes = source.read.decodes
        return CandidateFacts(
            num_cores,
            cuda,
            decodes,
            ("thread", "process") if decodes else ("thread",),
            source.workers.num,
            num_steps,
        )
    if isinstance(source, SyntheticSource):
        return CandidateFacts(
            num_cores, cuda, decodes=False, kinds=(), num_workers=0, num_steps=num_steps
        )
    kinds = ("thread",) if isinstance(source, DALISource) else ("thread", "process")
    present = num_cores if num is None else num
    return CandidateFacts(
        num_cores,
        cuda,
        True,
        kinds,
        max(1, present) if isinstance(source, DALISource) else present,
        num_steps,
    )


def present(config: Config, facts: CandidateFacts, loader: str) -> Candidate:
    """What ``config`` has chosen already; ``loader``: the name of its choice, or the dotted name of one of the user's own, left as it is."""
    num, depth = facts.num_workers, 0 if "." in loader else config["loader"].get("depth", 0)
    return Candidate(num, config["workers"]["kind"] if num else "thread", loader, depth)


def worker_counts(facts: CandidateFacts) -> list[int]:
    """Powers of two up to twice the cores, and the cores; DALI always has a thread."""
    if not facts.kinds:
        return [0]
    if not facts.decodes:
        return [num for num in GATHERERS if num <= 2 * facts.num_cores]
    powers = [1 << bit for bit in range((2 * facts.num_cores).bit_length())]
    counts = {num for num in powers if num <= 2 * facts.num_cores} | {facts.num_cores}
    return sorted(counts if facts.kinds == ("thread",) else counts | {0})


def candidates(
    default: Candidate, facts: CandidateFacts, loaders: Mapping[str, Config]
) -> list[Candidate]:
    """The default, then all others, those nearest to it first; each loader with its own depth (``with_depths`` has the rest).

    ``loaders``: the choices that compose here, by name, as configured.
    """
    found = {
        Candidate(
            num, kind, name, default.depth if name == default.loader else block.get("depth", 0)
        )
        for num in worker_counts(facts)
        for kind in (facts.kinds if num else ("thread",))
        for name, block in loaders.items()
        if name != "stream" or facts.cuda or default.loader == "stream"
    }
    return [
        default,
        *sorted(found - {default}, key=lambda candidate: preference(candidate, default)),
    ]


def with_depths(candidate: Candidate) -> list[Candidate]:
    """The same with other depths; none where its loader has no depth."""
    return (
        [candidate._replace(depth=depth) for depth in DEPTHS if depth != candidate.depth]
        if candidate.depth
        else []
    )


def preference(candidate: Candidate, default: Candidate) -> tuple[Any, ...]:
    """Least for what is preferred among equals: few changes, threads, few workers, little ahead."""
    changes = sum(mine != its for mine, its in zip(candidate, default, strict=True))
    return (
        changes,
        candidate.kind != "thread",
        candidate.num_workers,
        candidate.depth,
        candidate.loader,
    )


def applied(config: Config, candidate: Candidate, loaders: Mapping[str, Config]) -> Config:
    """``config`` with the candidate's choices."""
    block = dict(loaders[candidate.loader])
    if candidate.depth:
        block["depth"] = candidate.depth
    method = (
        config["workers"]["start_method"] if candidate.kind == "process" else None
    )  # threads are not started so
    workers = {
        **config["workers"],
        "num": candidate.num_workers,
        "kind": candidate.kind,
        "start_method": method,
    }
    return {**config, "workers": workers, "loader": block}


def whole_grid(chosen: Sequence[Candidate]) -> list[Candidate]:
    """All of them with every depth: what an exhaustive search would measure."""
    return list(
        dict.fromkeys(more for candidate in chosen for more in (candidate, *with_depths(candidate)))
    )
