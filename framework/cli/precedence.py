"""Which setting wins if files and words set the same key; ``docs/configuration.md`` has the rule.

Hydra's loader calls ``Composition.edit`` once all files are read and before they are merged, so
every command, sweep and ``--cfg job`` sees the same.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from framework.cli.arguments import SHORT
from framework.config.targets import CONF
from framework.errors import printable, say

IsGroup = Callable[[str], bool]
TRAIN = "train"  # the only command with a default recipe
DATA_KEYS = ("dataset", "source", "prepare", "data.train", "data.val")  # they name the data
DATA_PATHS = ("train", "val", "test")  # keys of the group data that every reader shares
NO_VALIDATION = "data.train, which is typed without data.val"
MOST_CHARACTERS = 300  # of a note's list
TARGET = "_target_"


class Layer(NamedTuple):
    """A configuration file as it was read, with its place among the others."""

    name: str  # as Hydra calls it, such as recipes/digits
    package: str  # the place of its keys; empty at the top
    path: str
    is_recipe: bool  # whether its keys stand at the top, as those of a recipe do
    values: dict[str, Any]  # by dotted key
    reasons: dict[str, str]  # dotted key -> because of what the file's value is dropped

    def below(self, place: str) -> list[str]:
        """Return the keys that count at a place or below it."""
        keys = [key for key in self.values if f"{key}.".startswith(f"{place}.")]
        return [key for key in keys if key not in self.reasons]


class Composition:
    """The words of one composition, and its files, from the weakest to the strongest."""

    def __init__(
        self, command: str | None, words: Sequence[str] = (), is_group: IsGroup = lambda _: False
    ) -> None:
        self.command = command
        self.typed = OverridesParser.create().parse_overrides(list(words))
        values = {word.key_or_group: word.value() for word in self.typed}
        self.keys = {word.package or word.key_or_group for word in self.typed}  # also groups
        self.is_sweep = any(word.is_sweep_override() for word in self.typed)
        self.is_single_run = values.get("hydra.mode") == "RUN"  # typed, whatever a recipe says
        self.has_folds = values.get("folds") is not None
        data = tuple(f"{name}." for name in DATA_KEYS)
        # null names no data: data.val=null only turns validation off
        named = [key for key, value in values.items() if value is not None]
        self.data_keys = [key for key in named if f"{key}.".startswith(data)]
        self.choices: dict[str, str] = {}  # place of the chosen block -> the word
        self.dropped: list[str] = []  # notes on keys that do not count
        self.layers: list[Layer] = []
        for word in self.typed:
            key, value = word.key_or_group, word.value()
            # A recipe's options of a sweeper are for a choice that only words may make.
            is_choice = "." not in key and not key.startswith("hydra/") and is_group(key)
            if isinstance(value, dict):  # a block, as in optim={lr: 1}, chooses nothing
                # But objects by name replace the one that a recipe has.
                is_choice = key in ("data.train", "data.val") and all(
                    isinstance(part, dict) and TARGET in part for part in value.values()
                )
            if is_choice:
                self.choices[_place(key, word.package)] = str(word.input_line)

    @property
    def without_recipe(self) -> str | None:
        """The typed key that keeps the default recipe out; None if the recipe applies."""
        if self.command != TRAIN or "recipes" in self.keys or not self.data_keys:
            return None
        return min(self.data_keys)

    @property
    def without_validation(self) -> bool:
        """Whether training data is named without validation data."""
        has_val = any(f"{key}.".startswith("data.val.") for key in self.keys)
        is_named = has_val or "dataset" in self.keys or self.has_folds
        return self.command == TRAIN and "data.train" in self.keys and not is_named

    @property
    def notes(self) -> list[str]:
        """What Paceline did that no word asks for. Each job of a sweep prints its own notes."""
        if self.is_sweep:
            return []
        lines = list(self.dropped)
        if (key := self.without_recipe) is not None:
            lines.append(f"no recipe is used, because {key} is typed; recipes=NAME adds one")
        if self.without_validation:
            lines.append("no validation, because data.train is typed without data.val")
        return lines

    def edit(self, defaults: Sequence[ResultDefault], repository: IConfigRepository) -> None:
        """Remove from the files, which are given in their order, what a stronger layer replaces."""
        if self.command is None:
            return
        parents = {str(default.config_path): str(default.parent) for default in defaults}
        for default in defaults:
            name, package = str(default.config_path), default.package or ""
            loaded = repository.load_config(name)
            if loaded is None or name.startswith("hydra"):
                continue
            content: Any = OmegaConf.to_container(loaded.config)
            if not isinstance(content, dict):
                continue
            for block, key in SHORT.items():
                if not package and block in content and not isinstance(content[block], dict):
                    content[block] = {key: content[block]}
                    loaded.config = OmegaConf.create(content)
            is_recipe = not package and name != self.command and not name.startswith("debug/")
            values = dict(leaves(content, package))
            path = os.path.normpath(Path(loaded.path.partition("://")[2], f"{name}.yaml"))
            layer = Layer(name, package, shown_path(path), is_recipe, values, {})
            self.layers.append(layer)
            if self.without_validation and (is_recipe or name.startswith("data/")):
                layer.reasons.update(dict.fromkeys(layer.below("data.val"), NO_VALIDATION))
            if not is_recipe:
                continue
            stronger = dict(self.choices)
            above = parents[name]
            while above in parents and above != self.command:
                for place, reason in _choices_of(above, repository):
                    stronger.setdefault(place, reason)
                above = parents[above]
            for place, reason in stronger.items():
                keys = layer.below(place)
                if place == "data":
                    kept = tuple(f"data.{name}." for name in DATA_PATHS)
                    keys = [key for key in keys if not f"{key}.".startswith(kept)]
                self._drop(layer, keys, reason)
            if self.is_single_run:  # the options of a sweeper and a launcher that are not chosen
                keys = [*layer.below("hydra.sweeper"), *layer.below("hydra.launcher")]
                layer.reasons.update(dict.fromkeys(keys, "hydra.mode=RUN"))
        self._drop_other_targets()
        for layer in self.layers:
            loaded = repository.load_config(layer.name)
            if layer.reasons and loaded is not None:
                content = _without(OmegaConf.to_container(loaded.config), layer.package, layer)
                if layer.name.startswith("data/") and NO_VALIDATION in layer.reasons.values():
                    content["val"] = None
                loaded.config = OmegaConf.create(content)

    def _drop_other_targets(self) -> None:
        """Drop what typed blocks replace that have another target than the files."""
        words = [word for word in self.typed if not (word.is_delete() or word.is_sweep_override())]
        kept = {leaf for word in words for leaf, _ in leaves(word.value(), word.key_or_group)}
        # The command's own keys, such as ``optim.scaling``, keep their values.
        layers = [layer for layer in self.layers if layer.name != self.command]
        for word in words:
            if not isinstance(word.value(), dict):
                continue
            for place, target in leaves(word.value(), word.key_or_group):
                block = place.removesuffix(f".{TARGET}")
                targets = [layer.values[place] for layer in layers if layer.below(place)]
                if block != place and targets and targets[-1] != target:
                    for layer in layers:
                        keys = [key for key in layer.below(block) if key not in {*kept, block}]
                        self._drop(layer, keys, str(word.input_line))

    def _drop(self, layer: Layer, keys: Sequence[str], reason: str) -> None:
        layer.reasons.update(dict.fromkeys(keys, reason))
        if all(layer.values[key] in (None, {}) for key in keys):  # these need no note
            return
        shown = printable(", ".join(f"{key}={layer.values[key]}" for key in keys))
        if len(shown) > MOST_CHARACTERS:
            shown = f"{shown[:MOST_CHARACTERS]}..."
        self.dropped.append(f"{layer.path}: dropped {shown}, because of {reason}")


_composition = Composition(None)
_noted: set[str] = set()


def begin(command: str | None, words: Sequence[str], is_group: IsGroup) -> Composition:
    """Return the composition that starts, whose words decide how files are edited."""
    global _composition  # noqa: PLW0603  # Hydra hands nothing of ours to those who read its files
    _composition = Composition(command, words, is_group)
    return _composition


def last() -> Composition:
    return _composition


def note_once(lines: Sequence[str]) -> None:
    """Print notes on standard error, each once per process."""
    for note in lines:
        if note not in _noted:
            _noted.add(note)
            say(f"note: {note}", sys.stderr)


def without_null(overrides: Iterable[str], is_group: IsGroup) -> list[str]:
    """Return the overrides with ``~group`` for ``group=null``, which Hydra takes only in files."""
    words: list[str] = []
    for word in overrides:
        key, _, value = word.partition("=")
        group = key.split("@")[0]  # behind the @ is a place, such as data.val_transform
        if value != "null" or "." in group or key.startswith(("+", "~")) or not is_group(group):
            words.append(word)
        elif key != "debug":  # debug is null already, and sinks and metrics are lists
            words.append(f"{key}=[]" if key in ("sink", "metrics") else f"~{key}")
    return words


def shown_path(path: str) -> str:
    """Return the shortest way to a file of configuration: from here, or from beside our ``conf/``.

    A file of the present folder begins with ``./`` if it could be taken for one of ours.
    """
    ours, here = os.path.relpath(path, CONF.parent), os.path.relpath(path)
    if not ours.startswith(".."):
        return min(ours, here, path, key=len)
    if here.startswith(("conf/", "recipes/")):
        here = f"./{here}"
    return min(here, path, key=len)


def default_recipes() -> list[str]:
    """Return the recipes that ``paceline train`` uses if nothing about data is typed."""
    primary: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{TRAIN}.yaml"))
    return [entry["recipes"] for entry in primary["defaults"] if "recipes" in entry]


def with_named_recipe(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """Name the default recipe in ``words`` if they use it and ``later`` names data.

    Together with words that name data, the same words would no longer use the recipe.
    """
    before = Composition(TRAIN, words)
    is_named = "recipes" in before.keys or before.without_recipe is not None
    if is_named or not Composition(TRAIN, later).data_keys:
        return list(words)
    return [*(f"recipes={name}" for name in default_recipes()), *words]


def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything below ``where`` that is not a block."""
    if not isinstance(node, dict) or not node:
        yield where, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{where}.{name}" if where else str(name))


def _place(group: str, package: str | None) -> str:
    if package is None:
        return group.strip("/").replace("/", ".")
    return package.removeprefix("_global_.")


def _choices_of(name: str, repository: IConfigRepository) -> Iterator[tuple[str, str]]:
    """Yield the place of each choice in a recipe's defaults list, and the entry in words."""
    loaded = repository.load_config(name)
    for entry in (loaded.defaults_list if loaded is not None else None) or ():
        if isinstance(entry, GroupDefault) and (entry.value is not None or entry.override):
            key = f"{'override ' * entry.override}{entry.group}"
            yield _place(str(entry.group), entry.package), f"{name}'s {key}: {entry.value}"


def _without(node: Any, where: str, layer: Layer) -> dict[str, Any]:
    """Return a block without what is dropped, and without blocks that get empty by this."""
    rest: dict[str, Any] = {}
    for name, value in node.items():
        place = f"{where}.{name}" if where else str(name)
        kept = _without(value, place, layer) if isinstance(value, dict) else value
        if place not in layer.reasons and (kept != {} or value == {}):
            rest[name] = kept
    return rest
