"""A recipe made of another one, the words that were typed, and what was found."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.cli.paths import CONF, ROOT
from framework.cli.precedence import default_recipes, typed_for_train
from framework.commands.tune.candidate import Candidate
from framework.errors import ConfigError, printable
from framework.system.durable import write_text

Config = dict[str, Any]
NEVER_IN_A_FILE = ("allow_targets", "hydra.", "hydra/", "debug")
FOUND = ("loader", "workers.num", "workers.kind", "workers.start_method")  # what a search decides


class TypedTune(NamedTuple):
    """Words of a command line as a recipe has them. ``bases``: the recipes it is made of; ``again``: what no file can say."""

    bases: list[str]
    defaults: dict[str, Any]
    values: DictConfig
    again: list[str]


def typed(words: Sequence[str], config_dir: str | None) -> TypedTune:
    """``words`` that compose: overrides of ``paceline train``."""
    said = typed_for_train(words)
    found = TypedTune([] if said.without_recipe else default_recipes(), {}, OmegaConf.create(), [])
    if said.without_validation:  # a rule for what is typed, which a recipe is not
        OmegaConf.update(found.values, "data.val", None, force_add=True)
    folders = [Path(folder) for folder in (CONF, ROOT, config_dir) if folder is not None]
    for word, override in zip(
        words, OverridesParser.create().parse_overrides(list(words)), strict=True
    ):
        key = override.key_or_group
        value: Any = override.value()
        is_group = any((folder / key).is_dir() for folder in folders) and isinstance(
            value, str | list | None
        )
        if override.is_delete() or key.startswith(NEVER_IN_A_FILE):
            found.again.append(word)
        elif key == "recipes":
            found.bases[:] = [value] if isinstance(value, str) else value or []
        elif is_group:
            found.defaults[_entry(override)] = value
        else:
            OmegaConf.update(found.values, key, value, merge=True, force_add=True)
    return found


def _entry(override: Override) -> str:
    package = f"@{override.package}" if override.package is not None else ""
    return f"{'' if override.is_add() else 'override '}/{override.key_or_group}{package}"


def without_found(words: Sequence[str], loader_changed: bool) -> list[str]:
    """``words`` but for those that say what a search decides; a loader's other keys stay with the loader."""
    gone = {*FOUND, "loader.depth"}
    keys = {word: word.lstrip("+~").split("=")[0] for word in words}
    return [
        word
        for word, key in keys.items()
        if key not in gone and not (loader_changed and key.startswith("loader."))
    ]


def recipe_text(found: TypedTune, winner: Candidate | None, comments: Sequence[str]) -> str:
    """YAML. ``winner`` None: the present settings, as they were typed."""
    chosen = {**found.defaults, **({} if winner is None else {"override /loader": winner.loader})}
    lines = [f"{entry}: {_flow(value)}" for entry, value in chosen.items()]
    added = [line for line in lines if not line.startswith("override ")]
    bases = [f"/recipes/{base}" for base in found.bases]
    defaults = [
        *bases,
        *added,
        "_self_",
        *(line for line in lines if line not in added),
    ]  # Hydra wants overrides last
    head = [
        "# @package _global_",
        *(f"# {printable(comment)}" for comment in comments),
        "defaults:",
        *(f"  - {line}" for line in defaults),
    ]
    values = OmegaConf.merge(found.values, {} if winner is None else _decided(winner))
    return "\n".join([*head, f"\n{OmegaConf.to_yaml(values)}" if values else ""])


def _flow(value: Any) -> str:
    """A choice, or several of a group that takes them, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return "null" if value is None else value


def _decided(winner: Candidate) -> Config:
    depth = {"loader": {"depth": winner.depth}} if winner.depth else {}
    return {
        "workers": {"num": winner.num_workers, "kind": winner.kind, "start_method": None},
        **depth,
    }


def write_recipe(
    path: Path, text: str, wanted: Config, words: Sequence[str], grant: Grant, config_dir: str
) -> None:
    """Write it, and see that it composes to ``wanted`` with ``words`` (recipes=..., and what no file can say). ConfigError C198."""
    write_text(path, text)
    made, _ = composed(words, grant, config_dir)
    differ = sorted(key for key in {*made, *wanted} if made.get(key) != wanted.get(key))
    if differ:
        path.unlink()
        what = f"a recipe cannot say all that was typed: {', '.join(differ)} would differ"
        raise ConfigError(
            198, str(path), what, "put it into a recipe of your own first, and tune that"
        )


def check_name(name: str, bases: Sequence[str]) -> None:
    """ConfigError C197 for what cannot be a recipe's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(
            197,
            f"name = {name[:100]}",
            "not a name for a recipe",
            "give up to 100 letters, digits, dots, dashes",
        )
    if f"tuned/{name}" in bases:
        raise ConfigError(
            197, f"name = {name}", "the recipe would be made of itself", "give another name="
        )
