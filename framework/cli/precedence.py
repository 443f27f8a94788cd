"""Which setting wins if files and words set the same key; ``docs/configuration.md`` has the rule.

A choice replaces everything that weaker layers set for its group. The layers, from weak to strong,
are the defaults, a recipe's own bases, the recipe, and the command line. Files are edited while
Hydra reads them, so every command, sweep and ``--cfg job`` sees the same result.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from framework.cli.arguments import SHORT
from framework.config.paths import CONF
from framework.errors import ConfigError, printable, say

TRAIN = "train"  # the only command with a default recipe
DATA_KEYS = ("dataset", "source", "prepare", "data.train", "data.val")  # they name the data
DATA_PATHS = ("train", "val")  # keys of the group data that every reader shares
DROPPED_VALIDATION = "dropped, because data.train is typed without data.val"
MOST_CHARACTERS = 300  # of a note's list


class File(NamedTuple):
    """A configuration file as it was read.

    Attributes:
        path: The file.
        content: Its plain values.
        reasons: Dotted key -> why the file's value does not count.
    """

    path: str
    content: dict[str, Any]
    reasons: dict[str, str]


class Composition:
    """The words of one composition, and the files it has read."""

    def __init__(
        self, command: str | None, typed: Sequence[Override], groups: Sequence[str]
    ) -> None:
        self.command = command
        self.keys = {word.package or word.key_or_group for word in typed}
        self.is_sweep = any(word.is_sweep_override() for word in typed)
        self.choices: dict[str, str] = {}  # place of the chosen block -> the word
        self.recipes: dict[str, Any] = {}  # configuration path -> its defaults list
        self.notes: list[str] = []  # on keys of recipes that do not count
        self.files: dict[str, File] = {}
        self.data_keys: list[str] = []
        self.has_folds = False
        self.is_single_run = False  # typed as hydra.mode=RUN, whatever a recipe says
        for word in typed:
            self._note(word, groups)

    def _note(self, word: Override, groups: Sequence[str]) -> None:
        key = word.key_or_group
        # A recipe's options of a sweeper or a launcher are for a choice that only words may make.
        # A block, as in optim={lr: 1}, chooses nothing.
        is_block = isinstance(word.value(), dict)
        # Sets by name replace the one object that a recipe has, whose arguments they would become.
        if is_block and key in ("data.train", "data.val") and _are_objects(word.value()):
            self.choices[key] = str(word.input_line)
        if key in groups and not key.startswith("hydra/") and not is_block:
            self.choices[_place(key, word.package)] = str(word.input_line)
        # null names no data: data.val=null only turns validation off
        if _names_data(key) and word.value() is not None:
            self.data_keys.append(key)
        if key == "folds" and word.value() is not None:
            self.has_folds = True
        if key == "hydra.mode":
            self.is_single_run = word.value() == "RUN"

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


_composition = Composition(None, (), ())
_told: set[tuple[int, str]] = set()


def _names_data(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in DATA_KEYS)


def _are_objects(block: Any) -> bool:
    """Return whether a block has nothing but objects by name."""
    return all(isinstance(part, dict) and "_target_" in part for part in block.values())


def _place(group: str, package: str | None) -> str:
    """Return the dotted key of a choice's block."""
    if package is None:
        return group.replace("/", ".")
    return package.removeprefix("_global_.")


def typed_keys() -> set[str]:
    """Return the keys and groups that are typed on the command line."""
    return _composition.keys


def begin(command: str | None, overrides: Sequence[str], is_group: Callable[[str], bool]) -> None:
    """Note the words of the composition that starts. ``is_group``: whether a key is a group."""
    global _composition  # noqa: PLW0603  # Hydra hands nothing of ours to those who read its files
    typed = OverridesParser.create().parse_overrides(list(overrides))
    keys = [word.key_or_group for word in typed]
    groups = [key for key in keys if "." not in key and is_group(key)]
    _composition = Composition(command, typed, groups)


def without_null(overrides: Sequence[str], is_group: Callable[[str], bool]) -> list[str]:
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


def default_recipes() -> list[str]:
    """Return the recipes that ``paceline train`` uses if nothing about data is typed."""
    primary: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{TRAIN}.yaml"))
    return [entry["recipes"] for entry in primary["defaults"] if "recipes" in entry]


def typed_for_train(words: Sequence[str]) -> Composition:
    """Return what ``words`` mean as overrides of ``paceline train``."""
    return Composition(TRAIN, OverridesParser.create().parse_overrides(list(words)), ())


def with_recipe_said(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """Name the default recipe in ``words`` if they use it and ``later`` names data.

    Together with words that name data, the same words would no longer use the recipe.
    """
    before = typed_for_train(words)
    is_named = "recipes" in before.keys or before.without_recipe is not None
    if is_named or not typed_for_train(later).data_keys:
        return list(words)
    return [*(f"recipes={name}" for name in default_recipes()), *words]


def last() -> Composition:
    """Return the last composition."""
    return _composition


def tell(lines: Sequence[str]) -> None:
    """Print notes on standard error, each once per process."""
    for note in lines:
        if (os.getpid(), note) not in _told:
            _told.add((os.getpid(), note))
            say(f"note: {note}", sys.stderr)


def notes() -> list[str]:
    """Return what the last composition did beyond its words.

    The jobs of a sweep say it themselves.
    """
    if _composition.is_sweep:
        return []
    lines = list(_composition.notes)
    if (key := _composition.without_recipe) is not None:
        lines.append(f"no recipe is used, because {key} is typed; recipes=NAME adds one")
    if _composition.without_validation:
        lines.append("no validation, because data.train is typed without data.val")
    return lines


def _listed(values: Mapping[str, Any]) -> str:
    text = printable(", ".join(f"{key}={value}" for key, value in values.items()))
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}..."


def edit(config_path: str, path: str, is_global: bool, config: Any) -> None:
    """Remove from the file just read what a stronger layer replaces.

    Args:
        config_path: Hydra's name for the file, such as ``recipes/digits``.
        path: The file.
        is_global: Whether its keys stand at the top of the configuration.
        config: Its content.
    """
    name = config_path.removesuffix(".yaml")
    if not isinstance(config, DictConfig) or _composition.command is None:
        return
    if is_global:
        for block, key in SHORT.items():
            if block in config and not isinstance(config.get(block), DictConfig):
                config[block] = {key: config.get(block)}
    content: Any = OmegaConf.to_container(config)
    file = File(_shown(path), content, {})
    _composition.files[name] = file
    if name == TRAIN and _composition.without_recipe is not None:
        for entry in config.get("defaults") or ():
            if isinstance(entry, DictConfig) and "recipes" in entry:
                entry["recipes"] = None
    elif name.startswith("data/") and "val" in config and _composition.without_validation:
        config["val"] = None
        file.reasons["data.val"] = DROPPED_VALIDATION
    elif is_global and not name.startswith("debug/") and name != _composition.command:
        _edit_recipe(name, file, config)


def _edit_recipe(name: str, file: File, recipe: DictConfig) -> None:
    _composition.recipes[name] = recipe.get("defaults")
    stronger = dict(_composition.choices)
    for above in _ancestors(name):
        for place, word in _choices_of(_composition.recipes[above]).items():
            stronger.setdefault(place, f"{above}'s {word}")
    for place, word in stronger.items():
        _drop(recipe, file, place, word)
    if _composition.is_single_run:
        _drop_sweep(recipe)
    if _composition.without_validation and OmegaConf.select(recipe, "data.val") is not None:
        with open_dict(recipe):
            del recipe["data"]["val"]
        file.reasons["data.val"] = DROPPED_VALIDATION


def _drop_sweep(recipe: DictConfig) -> None:
    """Remove the options of a sweeper and a launcher that may not be chosen for a single run."""
    hydra = recipe.get("hydra")
    if isinstance(hydra, DictConfig):
        with open_dict(hydra):
            hydra.pop("sweeper", None)
            hydra.pop("launcher", None)


def _drop(recipe: DictConfig, file: File, place: str, reason: str) -> None:
    """Remove the block at ``place``, and note its values."""
    above, _, last = place.rpartition(".")
    parent = recipe
    if above:
        parent = OmegaConf.select(recipe, above)
    if not isinstance(parent, DictConfig) or last not in parent:
        return
    block: Any = OmegaConf.to_container(parent)
    kept: dict[str, Any] = {}
    if place == "data" and isinstance(block[last], dict):
        kept = {key: block[last].pop(key) for key in DATA_PATHS if key in block[last]}
    if block[last] != {}:
        _note_dropped(file, dict(leaves(block[last], place)), reason)
    with open_dict(parent):
        del parent[last]
        if kept:
            parent[last] = kept


def note_dropped(name: str, values: Mapping[str, Any], word: str) -> None:
    """Note the values of a file, by its name for Hydra, that a typed word replaces.

    A null is not worth a note.
    """
    if any(value is not None for value in values.values()):
        _note_dropped(_composition.files[name], values, word)


def _note_dropped(file: File, values: Mapping[str, Any], reason: str) -> None:
    note = f"{file.path}: dropped {_listed(values)}, because of {reason}"
    _composition.notes.append(note)
    file.reasons.update(dict.fromkeys(values, f"dropped, because of {reason}"))


def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything below ``where`` that is not a block."""
    if not isinstance(node, dict) or not node:
        yield where, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{where}.{name}" if where else str(name))


def _shown(path: str) -> str:
    """Return the shortest way to say a path; ours begin at the project's folder."""
    ours = os.path.relpath(path, CONF.parent)
    ways = [os.path.relpath(path), path]
    if not ours.startswith(".."):
        ways.append(ours)
    return min(ways, key=len)


def _ancestors(name: str) -> Iterator[str]:
    """Yield the recipes that are made of the recipe ``name``, the nearest first."""
    waiting = [name]
    seen = {name}
    while waiting:
        below = waiting.pop(0)
        for above, defaults in _composition.recipes.items():
            if above not in seen and below in _bases_of(above, defaults):
                seen.add(above)
                waiting.append(above)
                yield above


def _entries(defaults: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a defaults list; a plain name is a key without a value."""
    for entry in defaults if isinstance(defaults, ListConfig) else ():
        if isinstance(entry, DictConfig):
            yield from ((str(key), value) for key, value in entry.items())
        elif isinstance(entry, str):
            yield entry, None


def _bases_of(name: str, defaults: Any) -> set[str]:
    """Return the configuration paths that a recipe includes."""
    bases: set[str] = set()
    for key, value in _entries(defaults):
        group = key.removeprefix("optional ").strip().split("@")[0]
        choices = list(value) if isinstance(value, ListConfig) else [value]
        for choice in choices:
            path = group if value is None else f"{group}/{choice}"
            # A leading slash means the top; other paths begin at the recipe's own folder.
            whole = path.lstrip("/")
            if not path.startswith("/"):
                whole = os.path.join(os.path.dirname(name), path)
            bases.add(os.path.normpath(whole).removesuffix(".yaml"))
    return bases


def _choices_of(defaults: Any) -> dict[str, str]:
    """Return place -> the entry that chooses its block, of a recipe's defaults list."""
    choices: dict[str, str] = {}
    for key, value in _entries(defaults):
        words = key.split()
        group, _, package = words[-1].partition("@")
        if value is not None or words[0] == "override":
            choices[_place(group.lstrip("/"), package or None)] = f"{key}: {value}"
    return choices


def set_keys() -> set[str]:
    """Return the dotted keys that a word or a recipe of the last composition sets."""
    keys = set(_composition.keys)
    for name in _composition.recipes:
        keys |= dict(leaves(_composition.files[name].content, "")).keys()
    return keys


def check_data_named(config: DictConfig) -> None:
    """Check that the data to train on is named, and that named validation data is used.

    Raises:
        ConfigError: C103 if nothing names the data to train on, C205 if ``data.val`` is typed
            beside folds.
    """
    plain: Any = OmegaConf.to_container(config)
    data = plain.get("data")
    has_folds = plain.get("folds") is not None
    keys = _composition.data_keys
    if has_folds and any(f"{key}.".startswith("data.val.") for key in keys):
        what = "is not used, because a fold of data.train validates"
        raise ConfigError(205, f"data.val = {data['val']}", what, "leave it or folds out")
    if not isinstance(data, dict) or plain.get("dataset") is not None:
        return
    for split in DATA_PATHS:
        path = data.get(split)
        if split == "val" and has_folds:
            continue
        if isinstance(path, str) and "${dataset}" in path:
            fix = f"add data.{split}=STORE, dataset=FOLDER with the packed stores, or recipes=NAME"
            raise ConfigError(103, f"data.{split}", "must be given, since no recipe says it", fix)
