"""What wins when files and words set the same key; ``docs/configuration.md`` states the rule for users.

A choice replaces everything that weaker layers set for its group. The layers, from weak to strong: the defaults, a recipe's own
bases, the recipe, the command line. Files are edited while Hydra reads them, so every command, sweep and ``--cfg job`` sees the same
result.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from framework.cli.paths import CONF
from framework.errors import ConfigError, printable

TRAIN = "train"  # the command whose primary configuration has a default recipe
DATA_KEYS = ("dataset", "source", "prepare", "data.train", "data.val")  # they say which data
DATA_PATHS = ("train", "val")  # of the group data: which data, whoever reads it
DROPPED_VALIDATION = "dropped, because data.train is typed without data.val"
MOST_CHARACTERS = 300  # of what a note lists


class Drop(NamedTuple):
    """Keys of a recipe that do not count. ``values``: dotted key -> value as the file has it."""

    path: str
    values: dict[str, Any]
    reason: str


class File(NamedTuple):
    """A configuration file as it was read. ``reasons``: dotted key -> why the file's value does not count."""

    path: str
    content: dict[str, Any]
    reasons: dict[str, str]


class Composition:
    """What was typed for one composition, and the files it has read."""

    def __init__(
        self, command: str | None, typed: Sequence[Override], groups: Sequence[str]
    ) -> None:
        self.command = command
        self.choices = {
            _place(o.key_or_group, o.package): str(o.input_line)
            for o in typed
            if o.key_or_group in groups
        }
        self.keys = {o.key_or_group for o in typed}
        # null names no data: data.val=null only turns validation off
        self.data_keys = sorted(
            o.key_or_group for o in typed if _names_data(o.key_or_group) and o.value() is not None
        )
        self.is_sweep = any(o.is_sweep_override() for o in typed)
        self.recipes: dict[str, Any] = {}  # configuration path -> its defaults list
        self.dropped: list[Drop] = []
        self.files: dict[str, File] = {}

    @property
    def without_recipe(self) -> str | None:
        """The typed key that keeps the default recipe out; None if the recipe applies."""
        if self.command != TRAIN or "recipes" in self.keys:
            return None
        return self.data_keys[0] if self.data_keys else None

    @property
    def without_validation(self) -> bool:
        """Training data is named, and validation data is not."""
        keys = self.keys
        return (
            self.command == TRAIN
            and "data.train" in keys
            and "data.val" not in keys
            and "dataset" not in keys
        )


_composition = Composition(None, (), ())
_told: set[tuple[int, str]] = set()


def _names_data(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in DATA_KEYS)


def _place(group: str, package: str | None) -> str:
    """Where a choice's block stands in the configuration."""
    if package is None:
        return group.replace("/", ".")
    return package.removeprefix("_global_.")


def begin(command: str | None, overrides: Sequence[str], is_group: Callable[[str], bool]) -> None:
    """Note the words of the composition that starts. ``is_group``: says of a key whether it is a group's name."""
    global _composition  # noqa: PLW0603  # Hydra's readers of files are handed nothing else of ours
    typed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [
        o.key_or_group for o in typed if "." not in o.key_or_group and is_group(o.key_or_group)
    ]
    _composition = Composition(command, typed, groups)


def without_null(overrides: Sequence[str], is_group: Callable[[str], bool]) -> list[str]:
    """``overrides`` with ``group=null`` as ``~group``: Hydra takes a null only in a defaults list."""
    words: list[str] = []
    for word in overrides:
        key, _, value = word.partition("=")
        if value != "null" or "." in key or key.startswith(("+", "~")) or not is_group(key):
            words.append(word)
        elif key != "debug":  # debug is null already, and sinks are a list
            words.append("sink=[]" if key == "sink" else f"~{key}")
    return words


def default_recipes() -> list[str]:
    """The recipes that ``paceline train`` uses if nothing about data is typed."""
    primary: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{TRAIN}.yaml"))
    return [entry["recipes"] for entry in primary["defaults"] if "recipes" in entry]


def typed_for_train(words: Sequence[str]) -> "Composition":
    """What ``words`` say as overrides of ``paceline train``."""
    return Composition(TRAIN, OverridesParser.create().parse_overrides(list(words)), ())


def with_recipe_said(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """``words``, with the default recipe among them if they use it and ``later`` names data, which alone would keep it out."""
    if not typed_for_train(later).data_keys:
        return list(words)
    before = typed_for_train(words)
    if "recipes" in before.keys or before.without_recipe is not None:
        return list(words)
    return [*(f"recipes={name}" for name in default_recipes()), *words]


def dropped() -> list[Drop]:
    """What the last composition left out of its recipes."""
    return _composition.dropped


def files() -> dict[str, File]:
    """The files of the last composition by Hydra's names for them, such as ``recipes/digits``."""
    return _composition.files


def is_without_validation() -> bool:
    """Whether the last composition has no validation because only training data is typed."""
    return _composition.without_validation


def tell(lines: Sequence[str]) -> None:
    """Print notes on standard error, each once per process."""
    for note in lines:
        if (os.getpid(), note) not in _told:
            _told.add((os.getpid(), note))
            print(f"note: {note}", file=sys.stderr)


def notes() -> list[str]:
    """What the last composition did that was not typed; nothing for a sweep as a whole, whose jobs say it."""
    if _composition.is_sweep:
        return []
    lines = [
        f"{drop.path}: dropped {_listed(drop.values)}, because of {drop.reason}"
        for drop in _composition.dropped
    ]
    if (key := _composition.without_recipe) is not None:
        lines.append(f"no recipe is used, because {key} is typed; recipes=NAME adds one")
    if _composition.without_validation:
        lines.append("no validation, because data.train is typed without data.val")
    return lines


def _listed(values: Mapping[str, Any]) -> str:
    text = printable(", ".join(f"{key}={value}" for key, value in values.items()))
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


# ---------------------------------------------------------------------------------------------------------------- files


def edit(config_path: str, path: str, is_global: bool, config: Any) -> None:
    """Take out of the file just read what a stronger layer replaces. ``config_path``: Hydra's name for it, such as ``recipes/digits``."""
    name = config_path.removesuffix(".yaml")
    if not isinstance(config, DictConfig) or _composition.command is None:
        return
    content: Any = OmegaConf.to_container(config)
    file = _composition.files[name] = File(_shown(path), content, {})
    if name == TRAIN and _composition.without_recipe is not None:
        _take_recipe_out(config)
    elif name.startswith("data/") and "val" in config and _composition.without_validation:
        config["val"] = None
        file.reasons["data.val"] = DROPPED_VALIDATION
    elif is_global and not name.startswith("debug/") and name != _composition.command:
        _edit_recipe(name, file, config)


def _take_recipe_out(primary: DictConfig) -> None:
    for entry in primary.get("defaults") or ():
        if isinstance(entry, DictConfig) and "recipes" in entry:
            entry["recipes"] = None


def _edit_recipe(name: str, file: File, recipe: DictConfig) -> None:
    _composition.recipes[name] = recipe.get("defaults")
    stronger = dict(_composition.choices)
    for above in _ancestors(name):
        chosen = _choices_of(_composition.recipes[above])
        stronger |= {
            place: f"{above}'s {word}" for place, word in chosen.items() if place not in stronger
        }
    for place, word in stronger.items():
        _drop(recipe, file, place, word)
    if _composition.without_validation and OmegaConf.select(recipe, "data.val") is not None:
        with open_dict(recipe):
            del recipe["data"]["val"]
        file.reasons["data.val"] = DROPPED_VALIDATION


def _drop(recipe: DictConfig, file: File, place: str, reason: str) -> None:
    above, _, last = place.rpartition(".")
    parent = OmegaConf.select(recipe, above) if above else recipe
    if not isinstance(parent, DictConfig) or last not in parent:
        return
    block: Any = OmegaConf.to_container(parent)
    kept: dict[str, Any] = {}
    if place == "data" and isinstance(block[last], dict):
        kept = {key: block[last].pop(key) for key in DATA_PATHS if key in block[last]}
    if values := dict(leaves(block[last], place)):
        _composition.dropped.append(Drop(file.path, values, reason))
        file.reasons.update(dict.fromkeys(values, f"dropped, because of {reason}"))
    with open_dict(parent):
        del parent[last]
        if kept:
            parent[last] = kept


def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything below ``where`` that is not a block; a list is one value."""
    if not isinstance(node, dict) or not node:
        yield where, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{where}.{name}" if where else str(name))


def _shown(path: str) -> str:
    """A path as short as it can be said here: ours from the project's folder on."""
    relative = os.path.relpath(path)
    ours = os.path.relpath(path, CONF.parent)
    return min(relative, path, *(() if ours.startswith("..") else (ours,)), key=len)


def _ancestors(name: str) -> Iterator[str]:
    """Recipes that are made of the recipe ``name``, the nearest first."""
    waiting, seen = [name], {name}
    while waiting:
        below = waiting.pop(0)
        for above, defaults in _composition.recipes.items():
            if above not in seen and below in _bases_of(above, defaults):
                seen.add(above)
                waiting.append(above)
                yield above


def _entries(defaults: Any) -> Iterator[tuple[str, Any]]:
    """(key, value) of a defaults list; a plain name is a key without a value."""
    for entry in defaults if isinstance(defaults, ListConfig) else ():
        if isinstance(entry, DictConfig):
            yield from ((str(key), value) for key, value in entry.items())
        elif isinstance(entry, str):
            yield entry, None


def _bases_of(name: str, defaults: Any) -> set[str]:
    """The configuration paths that a recipe includes."""
    folder = os.path.dirname(name)
    found: set[str] = set()
    for key, value in _entries(defaults):
        group = key.removeprefix("optional ").strip().split("@")[0]
        for path in [group] if value is None else [f"{group}/{name}" for name in _as_list(value)]:
            whole = path.lstrip("/") if path.startswith("/") else os.path.join(folder, path)
            found.add(os.path.normpath(whole).removesuffix(".yaml"))
    return found


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, ListConfig) else [value]


def _choices_of(defaults: Any) -> dict[str, str]:
    """Place -> the entry that chooses its block, of a recipe's defaults list."""
    found: dict[str, str] = {}
    for key, value in _entries(defaults):
        words = key.split()
        group, _, package = words[-1].partition("@")
        if value is not None or words[0] == "override":
            found[_place(group.lstrip("/"), package or None)] = f"{key}: {value}"
    return found


# ----------------------------------------------------------------------------------------------------------- what is missing


def check_data_named(config: DictConfig) -> None:
    """ConfigError C103 if nothing says which data to train on."""
    plain: Any = OmegaConf.to_container(config)
    for split in DATA_PATHS:
        path = plain["data"].get(split) if isinstance(plain.get("data"), dict) else None
        if isinstance(path, str) and "${dataset}" in path and plain.get("dataset") is None:
            fix = f"add data.{split}=STORE, dataset=FOLDER with the packed stores, or recipes=NAME"
            raise ConfigError(103, f"data.{split}", "must be given, since no recipe says it", fix)
