"""What differs between two configurations, as changes that can be made one by one."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

Config = dict[str, Any]
Path = tuple[str, ...]
# What a short measurement of training steps does not run: it saves, validates and logs nothing.
UNMEASURED: tuple[Path, ...] = (
    *((key,) for key in ("epochs", "max_steps", "validate_every", "val_batch_size", "checkpoint")),
    *((key,) for key in ("sink", "metrics", "watchers", "stop", "best", "search_metric")),
    *((key,) for key in ("resume", "debug", "allow_targets", "dataset", "source", "prepare")),
    ("data", "val"),
    ("data", "val_transform"),
)


class Missing:
    """The value of a key that one of two configurations lacks."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


class KeyChange(NamedTuple):
    """A key, or a block with another target, that differs.

    Attributes:
        path: The names of the blocks around it, and its own.
        before: Its value in the first configuration.
        after: Its value in the second one.
    """

    path: Path
    before: Any
    after: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_measured(self) -> bool:
        """Whether a short measurement of training steps can show its effect."""
        return not any(self.path[: len(own)] == own for own in UNMEASURED)


def changes_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[KeyChange]:
    """Return every change that leads from one configuration to the other.

    A block whose ``_target_`` differs is a single change, since its keys belong together.
    """
    return list(_changes(before, after, ()))


def _changes(before: Any, after: Any, path: Path) -> Iterator[KeyChange]:
    if before == after and type(before) is type(after):
        return
    are_blocks = isinstance(before, Mapping) and isinstance(after, Mapping)
    if not are_blocks or before.get("_target_") != after.get("_target_"):
        yield KeyChange(path, before, after)
        return
    for key in dict.fromkeys([*before, *after]):
        own = before.get(key, MISSING), after.get(key, MISSING)
        yield from _changes(*own, (*path, str(key)))


def applied(config: Config, changes: Sequence[KeyChange]) -> Config:
    """Return the configuration with the second value of every change."""
    config = deepcopy(config)
    for change in changes:
        *parents, key = change.path
        block = config
        for name in parents:
            block = block[name]
        if isinstance(change.after, Missing):
            block.pop(key, None)
        else:
            block[key] = deepcopy(change.after)
    return config


def reversed_changes(changes: Sequence[KeyChange]) -> list[KeyChange]:
    """Return the changes that lead back."""
    return [KeyChange(change.path, change.after, change.before) for change in changes]
