"""The choices about reading that are worth trying: workers, their kind, the loader, its depth."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from framework.cli.units import plural
from framework.trials.trial_process import ReadFacts

Config = dict[str, Any]
DEPTHS = (1, 2, 4, 8)  # batches ready ahead of the step
# Threads for records that are only copied: two copy no more than one, but may read ahead.
GATHERERS = (0, 1, 2)


class Candidate(NamedTuple):
    num_workers: int
    kind: str  # of workers; thread if there are none
    loader: str
    depth: int  # of the loader; 0 if it has none

    @property
    def worker_kind(self) -> str | None:
        """The value of ``workers.kind``: without workers, none."""
        return self.kind if self.num_workers else None

    @property
    def words(self) -> tuple[str, ...]:
        """The overrides of ``train``."""
        words = [f"workers.num={self.num_workers}"]
        if self.num_workers:
            words.append(f"workers.kind={self.kind}")
        words.append(f"loader={self.loader}")
        if self.depth:
            words.append(f"loader.depth={self.depth}")
        return tuple(words)

    def __str__(self) -> str:
        workers = plural(self.num_workers, self.kind) if self.num_workers else "no workers"
        words = f"{workers}, {self.loader}"
        if self.depth:
            words += f" depth {self.depth}"
        return words


def present(config: Config, facts: ReadFacts, loader: str) -> Candidate:
    """Return the present settings. The depth of a user's loader, a dotted name, is left alone."""
    kind = "thread"
    if facts.num_workers:
        kind = config["workers"]["kind"] or facts.kinds[0]
    depth = 0
    if "." not in loader:
        depth = config["loader"].get("depth", 0)
    return Candidate(facts.num_workers, kind, loader, depth)


def worker_counts(facts: ReadFacts) -> list[int]:
    """Return powers of two up to twice the cores, the cores, and 0 if the source can do without."""
    most = 2 * facts.num_cores
    if not facts.kinds:
        return [0]
    if not facts.decodes:
        return [num for num in GATHERERS if num <= most]
    counts = {1 << bit for bit in range(most.bit_length())} | {facts.num_cores}
    if "process" in facts.kinds:  # DALI always has a thread
        counts.add(0)
    return sorted(counts)


def candidates(
    default: Candidate, facts: ReadFacts, loaders: Mapping[str, Config]
) -> list[Candidate]:
    """Return the default, then all others with the configured depth, those most similar first.

    ``loaders`` maps the names of usable loaders to their configurations.
    """
    others: set[Candidate] = set()
    for name, block in loaders.items():
        if name == "stream" and not facts.cuda and default.loader != "stream":
            continue
        depth = default.depth if name == default.loader else block.get("depth", 0)
        for num in worker_counts(facts):
            kinds = facts.kinds if num else ("thread",)
            others |= {Candidate(num, kind, name, depth) for kind in kinds}
    ranked = sorted(others - {default}, key=lambda candidate: preference(candidate, default))
    return [default, *ranked]


def whole_grid(chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return each candidate, followed by itself with all other depths if its loader has one."""
    grid: list[Candidate] = []
    for candidate in chosen:
        grid.append(candidate)
        if candidate.depth:
            grid += [candidate._replace(depth=depth) for depth in DEPTHS]
    return list(dict.fromkeys(grid))


def preference(candidate: Candidate, default: Candidate) -> tuple[Any, ...]:
    """Return a sort key that prefers few changes, threads, few workers and little read ahead."""
    changes = sum(mine != its for mine, its in zip(candidate, default, strict=True))
    is_process = candidate.kind != "thread"
    return changes, is_process, candidate.num_workers, candidate.depth, candidate.loader


def applied(config: Config, candidate: Candidate, loaders: Mapping[str, Config]) -> Config:
    """Return ``config`` with the candidate's choices."""
    loader = dict(loaders[candidate.loader])
    if candidate.depth:
        loader["depth"] = candidate.depth
    workers = {**config["workers"], "num": candidate.num_workers, "kind": candidate.worker_kind}
    if candidate.kind != "process":
        workers["start_method"] = None  # threads have none
    return {**config, "workers": workers, "loader": loader}
