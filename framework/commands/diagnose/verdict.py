"""What a rule says: what limits, by which numbers, what to do about it, and what that should bring."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ENDINGS = {"hdf5": ".h5", "lmdb": ".lmdb"}


@dataclass(frozen=True)
class Repack:
    """A store to be packed before training. ``source``: the input's name, folder or store; ``options``: of ``pack:``; ``target``: a path
    without its ending; ``val``, ``val_target``: of the validation set, where there is one.
    """

    source: str
    path: str
    target: str
    output: str = "hdf5"
    options: Mapping[str, str | int | list[int]] = field(
        default_factory=dict[str, str | int | list[int]]
    )
    val: str | None = None
    val_target: str = ""

    @property
    def paths(self) -> dict[str, tuple[str, str]]:
        """By split: (what is packed, the store that is made)."""
        found = {"train": (self.path, self.target + ENDINGS[self.output])}
        if self.val is not None:
            found["val"] = (self.val, self.val_target + ENDINGS[self.output])
        return found

    def commands(self) -> list[list[str]]:
        """The words after ``paceline`` that pack each split."""
        options = [f"pack.{key}={_value(value)}" for key, value in self.options.items()]
        return [
            [
                "pack",
                f"input={self.source}",
                f"input.path={_quoted(path)}",
                *options,
                f"output={self.output}",
                f"output.path={_quoted(target)}",
            ]
            for path, target in self.paths.values()
        ]

    def overrides(self) -> list[str]:
        """What makes training read the new stores."""
        found = [
            f"data={self.output}",
            *(f"data.{split}={_quoted(target)}" for split, (_, target) in self.paths.items()),
        ]
        return found if self.val is not None else [*found, "data.val=null"]


def _value(value: str | int | list[int]) -> str:
    return str(value).replace(" ", "")


def _quoted(path: str) -> str:
    """A path as Hydra's grammar takes it literally; plain ones stay plain."""
    if all(c.isalnum() or c in "/._-" for c in path):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Verdict:
    """``rule``: its function's name. ``says``: what limits, with numbers. ``why``: why the advice should help. ``overrides``: of train.
    ``edit``: a line to write, where no override will do. ``gain``: predicted factor on the rate of
    whole steps; ``tried``: by a trial of some seconds, with ``spread``, instead of the model, whose word is kept as ``modeled``. ``learns``: whether it changes what is learned.
    ``pack_s``: seconds that packing should take. ``failed``: why it cannot be done here.
    """

    rule: str
    says: str
    why: str
    gain: float
    overrides: tuple[str, ...] = ()
    repack: Repack | None = None
    edit: str = ""
    learns: bool = False
    tried: bool = False
    modeled: float = 0.0
    spread: float = 0.0
    pack_s: float = 0.0
    failed: str = ""

    @property
    def words(self) -> list[str]:
        """All overrides, those of the new store among them."""
        return [*(self.repack.overrides() if self.repack is not None else ()), *self.overrides]
