"""Which setting wins if files and words set the same key; ``docs/configuration.md`` has the rule.

Files are edited while Hydra reads them, so every command, sweep and ``--cfg job`` sees the same. A
typed block with another ``_target_`` replaces the block below it, as a choice does. Hydra would
give the arguments of one class to another.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from framework.cli.arguments import SHORT
from framework.config.targets import CONF
from framework.errors import printable, say

TRAIN = "train"  # the only command with a default recipe
DATA_KEYS = ("dataset", "source", "prepare", "data.train", "data.val")  # they name the data
DATA_PATHS = ("train", "val")  # keys of the group data that every reader shares
DROPPED_VALIDATION = "dropped, because data.train is typed without data.val"
MOST_CHARACTERS = 300  # of a note's list
TARGET = "_target_"


class File(NamedTuple):
    """A configuration file as it was read."""

    path: str
    content: dict[str, Any]  # plain values
    reasons: dict[str, str]  # dotted key -> why the file's value does not count


class Composition:
    """The words of one composition, and its files, which only a command edits."""

    def __init__(
        self,
        command: str | None,
        words: Sequence[str] = (),
        is_group: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.command = command
        self.keys: set[str] = set()  # that are typed, also groups
        self.choices: dict[str, str] = {}  # place of the chosen block -> the word
        self.recipes: dict[str, Any] = {}  # configuration path -> its defaults list
        self.dropped: list[str] = []  # notes on keys that do not count
        self.files: dict[str, File] = {}
        self.data_keys: list[str] = []
        self.has_folds = False
        self.is_sweep = False
        self.is_single_run = False  # typed as hydra.mode=RUN, whatever a recipe says
        for word in OverridesParser.create().parse_overrides(list(words)):
            key, value = word.key_or_group, word.value()
            self.keys.add(word.package or key)
            self.is_sweep = self.is_sweep or word.is_sweep_override()
            self.is_single_run = value == "RUN" if key == "hydra.mode" else self.is_single_run
            # null names no data: data.val=null only turns validation off
            if value is not None and f"{key}.".startswith(tuple(f"{name}." for name in DATA_KEYS)):
                self.data_keys.append(key)
            self.has_folds = self.has_folds or (key == "folds" and value is not None)
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
        """What was done beyond the words. The jobs of a sweep say it themselves."""
        if self.is_sweep:
            return []
        lines = list(self.dropped)
        if (key := self.without_recipe) is not None:
            lines.append(f"no recipe is used, because {key} is typed; recipes=NAME adds one")
        if self.without_validation:
            lines.append("no validation, because data.train is typed without data.val")
        return lines

    @property
    def set_keys(self) -> set[str]:
        """The dotted keys that a word or a recipe sets."""
        return self.keys.union(*(dict(leaves(self.files[n].content, "")) for n in self.recipes))

    def drop(self, file: File, values: Mapping[str, Any], reason: str) -> None:
        """Note the values of a file that something stronger replaces."""
        shown = printable(", ".join(f"{key}={value}" for key, value in values.items()))
        if len(shown) > MOST_CHARACTERS:
            shown = f"{shown[:MOST_CHARACTERS]}..."
        self.dropped.append(f"{file.path}: dropped {shown}, because of {reason}")
        file.reasons.update(dict.fromkeys(values, f"dropped, because of {reason}"))


_composition = Composition(None)
_told: set[str] = set()


def begin(
    command: str | None, words: Sequence[str], is_group: Callable[[str], bool]
) -> Composition:
    """Return the composition that starts, whose words decide how files are edited."""
    global _composition  # noqa: PLW0603  # Hydra hands nothing of ours to those who read its files
    _composition = Composition(command, words, is_group)
    return _composition


def last() -> Composition:
    return _composition


def tell(lines: Sequence[str]) -> None:
    """Print notes on standard error, each once per process."""
    for note in lines:
        if note not in _told:
            _told.add(note)
            say(f"note: {note}", sys.stderr)


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


def _place(group: str, package: str | None) -> str:
    """Return the dotted key of a choice's block."""
    if package is None:
        return group.replace("/", ".")
    return package.removeprefix("_global_.")


def default_recipes() -> list[str]:
    """Return the recipes that ``paceline train`` uses if nothing about data is typed."""
    primary: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{TRAIN}.yaml"))
    return [entry["recipes"] for entry in primary["defaults"] if "recipes" in entry]


def with_recipe_said(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """Name the default recipe in ``words`` if they use it and ``later`` names data.

    Together with words that name data, the same words would no longer use the recipe.
    """
    before = Composition(TRAIN, words)
    is_named = "recipes" in before.keys or before.without_recipe is not None
    if is_named or not Composition(TRAIN, later).data_keys:
        return list(words)
    return [*(f"recipes={name}" for name in default_recipes()), *words]


def edit(config_path: str, path: str, is_global: bool, config: Any) -> None:
    """Remove from ``config``, which was read from ``path``, what a stronger layer replaces.

    The keys of a global file stand at the top of the configuration.
    """
    name = config_path.removesuffix(".yaml")
    if not isinstance(config, DictConfig) or _composition.command is None:
        return
    if is_global:
        for block, key in SHORT.items():
            if block in config and not isinstance(config.get(block), DictConfig):
                config[block] = {key: config.get(block)}
    content: Any = OmegaConf.to_container(config)
    ours = os.path.relpath(path, CONF.parent)
    ways = [os.path.relpath(path), path] + ([] if ours.startswith("..") else [ours])
    file = File(min(ways, key=len), content, {})
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
        for key, value in _entries(_composition.recipes[above]):
            *override, choice = key.split()
            if value is not None or override[:1] == ["override"]:
                group, _, package = choice.partition("@")
                place = _place(group.lstrip("/"), package or None)
                stronger.setdefault(place, f"{above}'s {key}: {value}")
    with open_dict(recipe):
        for place, reason in stronger.items():
            _drop(recipe, file, place, reason)
        hydra = recipe.get("hydra")
        if _composition.is_single_run and isinstance(hydra, DictConfig):
            hydra.pop("sweeper", None)  # their options may not be chosen for a single run
            hydra.pop("launcher", None)
        if _composition.without_validation and OmegaConf.select(recipe, "data.val") is not None:
            del recipe["data"]["val"]
            file.reasons["data.val"] = DROPPED_VALIDATION


def _drop(recipe: DictConfig, file: File, place: str, reason: str) -> None:
    """Remove the block at ``place``, and note its values."""
    above, _, last = place.rpartition(".")
    parent = OmegaConf.select(recipe, above) if above else recipe
    if not isinstance(parent, DictConfig) or last not in parent:
        return
    plain: Any = OmegaConf.to_container(parent)
    block = plain[last]
    kept: dict[str, Any] = {}
    if place == "data" and isinstance(block, dict):
        kept = {key: block.pop(key) for key in DATA_PATHS if key in block}
    if block != {}:
        _composition.drop(file, dict(leaves(block, place)), reason)
    with open_dict(parent):
        del parent[last]
        if kept:
            parent[last] = kept


def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything below ``where`` that is not a block."""
    if not isinstance(node, dict) or not node:
        yield where, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{where}.{name}" if where else str(name))


def _ancestors(name: str) -> Iterator[str]:
    """Yield the recipes that are made of the recipe ``name``, the nearest first."""
    waiting = [name]
    for below in waiting:
        for above, defaults in _composition.recipes.items():
            if above not in waiting and below in _bases_of(above, defaults):
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
        for choice in list(value) if isinstance(value, ListConfig) else [value]:
            path = group if value is None else f"{group}/{choice}"
            # A leading slash means the top; other paths begin at the recipe's own folder.
            whole = path[1:] if path.startswith("/") else f"{os.path.dirname(name)}/{path}"
            bases.add(os.path.normpath(whole).removesuffix(".yaml"))
    return bases


def files_in_order(
    loader: ConfigLoader, command: str, words: Sequence[str]
) -> Iterator[tuple[str, File, dict[str, Any]]]:
    """Yield name, file and values by dotted key of the last composition's files, weakest first."""
    files, dropped = dict(_composition.files), list(_composition.dropped)
    # Hydra reads all files again, and what they say has been noted already.
    defaults = loader.compute_defaults_list(command, list(words), RunMode.RUN).defaults
    _composition.files, _composition.dropped = files, dropped
    for default in defaults:
        name = str(default.config_path)
        if name in files and not name.startswith("hydra"):
            plain = files[name].content
            content = {key: plain[key] for key in plain if key not in ("defaults", "hydra")}
            package = (default.package or "").removeprefix("_global_")
            yield name, files[name], dict(leaves(content, package))


def drop_replaced(
    config: DictConfig, loader: ConfigLoader, command: str, words: Sequence[str]
) -> None:
    """Remove from a composed configuration what typed blocks of other targets replace.

    Keys of the command's own file, such as ``optim.scaling``, get their values there.
    """
    if not any(TARGET in word and "{" in word for word in words):
        return
    typed = [
        word
        for word in OverridesParser.create().parse_overrides(list(words))
        if not (word.is_delete() or word.is_sweep_override())
    ]
    kept = {leaf for word in typed for leaf, _ in leaves(word.value(), word.key_or_group)}
    composition = _composition
    own: dict[str, Any] = {}
    layers: list[tuple[File, dict[str, Any]]] = []
    for name, file, values in files_in_order(loader, command, words):
        counting = {key: values[key] for key in values if key not in file.reasons}
        if name == command:
            own = counting
        else:
            layers.append((file, counting))
    blocks = [word for word in typed if isinstance(word.value(), dict)]
    for word in blocks:
        for place, target in leaves(word.value(), word.key_or_group):
            block = place.removesuffix(f".{TARGET}")
            below = [values[place] for _, values in layers if place in values]
            if block == place or not below or below[-1] == target:
                continue
            for file, values in layers:
                gone = {
                    key: values[key]
                    for key in values
                    if key.startswith(f"{block}.") and key not in kept
                }
                if any(value is not None for value in gone.values()):  # null needs no note
                    composition.drop(file, gone, str(word.input_line))
                for key in gone:
                    _reset(config, key, own)


def _reset(config: DictConfig, leaf: str, own: Mapping[str, Any]) -> None:
    """Give a key the value of the command's own file, or remove it, and blocks that get empty."""
    if leaf in own:
        OmegaConf.update(config, leaf, own[leaf])
        return
    above, _, last = leaf.rpartition(".")
    parent = OmegaConf.select(config, above)
    if isinstance(parent, DictConfig) and last in parent:
        with open_dict(parent):
            del parent[last]
        if not parent and "." in above:
            _reset(config, above, own)
