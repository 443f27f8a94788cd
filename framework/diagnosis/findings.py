"""A cause of slowness with advice and the gain to expect."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.cli.arguments import quoted

ENDINGS = {"hdf5": ".h5", "lmdb": ".lmdb"}
UNKNOWN = 0.0  # stands for a gain that nobody can predict

TrainWords = Callable[[Sequence[str]], list[str]]  # adds overrides to the words of ``train``


@dataclass(frozen=True)
class Repack:
    """A store to pack before training."""

    source: str  # the input to pack from: folder or store
    targets: Mapping[str, tuple[str, str]]  # as in `Storage`
    output: str = "hdf5"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of ``pack``
    follow_links: str | None = None  # of the folder: where symbolic links are followed

    @property
    def paths(self) -> dict[str, tuple[str, str]]:
        """By split: (what is packed, the new store)."""
        ending = ENDINGS[self.output]
        return {split: (path, target + ending) for split, (path, target) in self.targets.items()}

    def commands(self) -> list[list[str]]:
        """Return the words after ``paceline`` that pack each split."""
        commands: list[list[str]] = []
        for path, target in self.paths.values():
            words = ["pack", f"input={self.source}", f"input.path={_literal(path)}"]
            if self.follow_links is not None:
                words.append(f"input.follow_links={_literal(self.follow_links)}")
            words += [f"pack.{key}={str(v).replace(' ', '')}" for key, v in self.options.items()]
            commands.append([*words, f"output={self.output}", f"output.path={_literal(target)}"])
        return commands

    def overrides(self) -> list[str]:
        """Return the overrides that make training read the new stores."""
        targets = {split: _literal(target) for split, (_, target) in self.paths.items()}
        words = [f"data={self.output}", f"data.train={targets.pop('train')}"]
        val = targets.get("val", "null")
        if targets and "val" not in targets:
            sets = (f"{split.removeprefix('val.')}:{path}" for split, path in targets.items())
            val = f"{{{','.join(sets)}}}"
        return [*words, f"data.val={val}"]


def _literal(path: str) -> str:
    return path if re.fullmatch(r"[\w./-]+", path, re.ASCII) else quoted(path)


@dataclass(frozen=True)
class Verdict:
    rule: str  # the name of the cause
    says: str  # the cause, as a sentence with numbers
    why: str  # what to do and how it helps, as a sentence
    gain: float  # expected factor on the training rate; UNKNOWN if nobody can predict it
    overrides: tuple[str, ...] = ()  # of ``train``
    repack: Repack | None = None  # a store to pack first
    edit: str = ""  # a change to the user's code, if no override can do it
    action: str = ""  # what to do outside of Paceline, if no override can do it
    threads: int | None = None  # of torch, for an operator, by OMP_NUM_THREADS
    trial: tuple[str, ...] = ()  # overrides that show what an action would gain, and are no advice
    period_s: float = 0.0  # of what a run does only every so often, and the advice changes
    parts: tuple[str, ...] = ()  # of a step, that the cause slows; empty: those of its rules
    learns: bool = False  # whether the advice changes what the model learns
    tried: bool = False  # whether `gain` comes from a trial instead of the model
    modeled: float = 0.0  # the gain that the model predicts
    spread: float = 0.0  # of a tried gain
    pack_s: float = 0.0  # seconds that packing is expected to take
    disk_bytes: float = 0.0  # that the whole new training store is expected to take
    failed: str = ""  # why the advice is impossible here

    @property
    def lost(self) -> bool:
        """Whether a trial was not faster, or the model expects a slower step."""
        return self.gain <= 1 if self.tried else self.gain < 1

    @property
    def words(self) -> list[str]:
        """All overrides, including those that name a new store."""
        return [*(self.repack.overrides() if self.repack else ()), *self.overrides]

    @property
    def can_try(self) -> bool:
        """Whether this process can train as the advice says."""
        return bool(self.words) or self.threads is not None

    @property
    def is_advice(self) -> bool:
        """Whether the verdict says what to do."""
        return self.can_try or bool(self.edit or self.action)


def times(factor: float, digits: int = 1) -> str:
    """Return a factor in words: ``2.4 times``, or ``31 times``."""
    return f"{factor:.{digits if factor < 10 else 0}f} times"
