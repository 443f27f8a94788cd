"""The verdict of a diagnosis rule: a cause of slowness, advice, and the gain to expect."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from framework.cli.arguments import quoted

ENDINGS = {"hdf5": ".h5", "lmdb": ".lmdb"}


@dataclass(frozen=True)
class Repack:
    """A store to pack before training."""

    source: str  # the input to pack from: folder or store
    path: str  # the training set to pack
    target: str  # the new training store, without its ending
    output: str = "hdf5"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of ``pack``
    # The validation sets to pack, and their new stores without ending, by split: ``val``, or
    # ``val.NAME`` of several.
    val: Mapping[str, str] = field(default_factory=dict[str, str])
    val_targets: Mapping[str, str] = field(default_factory=dict[str, str])
    follow_links: str | None = None  # of the folder: where symbolic links are followed

    @property
    def paths(self) -> dict[str, tuple[str, str]]:
        """By split: (what is packed, the new store)."""
        ending = ENDINGS[self.output]
        paths = {"train": (self.path, self.target + ending)}
        return paths | {
            split: (path, self.val_targets[split] + ending) for split, path in self.val.items()
        }

    def commands(self) -> list[list[str]]:
        """Return the words after ``paceline`` that pack each split."""
        commands: list[list[str]] = []
        for path, target in self.paths.values():
            words = ["pack", f"input={self.source}", f"input.path={_literal(path)}"]
            if self.follow_links is not None:
                words.append(f"input.follow_links={_literal(self.follow_links)}")
            for key, value in self.options.items():
                words.append(f"pack.{key}={str(value).replace(' ', '')}")
            words += [f"output={self.output}", f"output.path={_literal(target)}"]
            commands.append(words)
        return commands

    def overrides(self) -> list[str]:
        """Return the overrides that make training read the new stores."""
        words = [f"data={self.output}"]
        targets = {split: _literal(target) for split, (_, target) in self.paths.items()}
        words.append(f"data.train={targets.pop('train')}")
        if not targets:
            words.append("data.val=null")
        elif "val" in targets:
            words.append(f"data.val={targets['val']}")
        else:
            sets = (f"{split.removeprefix('val.')}:{path}" for split, path in targets.items())
            words.append(f"data.val={{{','.join(sets)}}}")
        return words


def _literal(path: str) -> str:
    return path if re.fullmatch(r"[\w./-]+", path, re.ASCII) else quoted(path)


@dataclass(frozen=True)
class Verdict:
    rule: str  # the name of the rule's function
    says: str  # the cause, as a sentence with numbers
    why: str  # what to do and how it helps, as a sentence
    gain: float  # expected factor on the training rate
    overrides: tuple[str, ...] = ()  # of ``train``
    repack: Repack | None = None  # a store to pack first
    edit: str = ""  # a change to the user's code, if no override can do it
    action: str = ""  # what to do outside of Paceline, if no override can do it
    threads: int | None = None  # of torch, for an operator, by OMP_NUM_THREADS
    trial: tuple[str, ...] = ()  # overrides that show what an action would gain, and are no advice
    period_s: float = 0.0  # of what a run does only every so often, and the advice changes
    parts: tuple[str, ...] = ()  # of a step, that the cause slows; empty: those of its module
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
        if self.repack is None:
            return list(self.overrides)
        return [*self.repack.overrides(), *self.overrides]

    @property
    def can_try(self) -> bool:
        """Whether this process can train as the advice says."""
        return bool(self.words) or self.threads is not None

    @property
    def has_trial(self) -> bool:
        """Whether a trial can show what the advice gains."""
        return self.can_try or bool(self.trial)

    @property
    def is_advice(self) -> bool:
        """Whether the verdict says what to do."""
        return self.can_try or bool(self.edit or self.action)
