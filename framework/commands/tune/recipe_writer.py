"""Write a recipe that combines recipes, the words of a command line, and a search's result."""

import re
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.cli.precedence import default_recipes, typed_for_train
from framework.commands.tune.candidate import Candidate
from framework.config.paths import CONF, ROOT
from framework.errors import ConfigError, printable
from framework.system.durable import write_text
from framework.system.stopping import undone

Config = dict[str, Any]
NEVER_IN_A_FILE = ("allow_targets", "hydra.", "hydra/", "debug")
# What a search decides.
SEARCHED = ("loader", "loader.depth", "workers.num", "workers.kind", "workers.start_method")


class TypedWords(NamedTuple):
    """The words of a command line in the form of a recipe."""

    bases: list[str]  # the recipes it combines
    defaults: dict[str, Any]
    values: DictConfig
    again: list[str]  # words that a file cannot contain


def typed(words: Sequence[str], config_dir: str | None) -> TypedWords:
    """Sort ``words``, overrides of ``train`` that compose, into the parts of a recipe."""
    precedence = typed_for_train(words)
    bases = default_recipes()
    if precedence.without_recipe:
        bases = []
    defaults: dict[str, Any] = {}
    values = OmegaConf.create()
    again: list[str] = []
    if precedence.without_validation:  # a rule for typed words, which does not apply to a recipe
        OmegaConf.update(values, "data.val", None, force_add=True)
    folders = [Path(folder) for folder in (CONF, ROOT, config_dir) if folder is not None]
    overrides = OverridesParser.create().parse_overrides(list(words))
    for word, override in zip(words, overrides, strict=True):
        key = override.key_or_group
        value: Any = override.value()
        is_group = any((folder / key).is_dir() for folder in folders)
        if override.is_delete() or key.startswith(NEVER_IN_A_FILE):
            again.append(word)
        elif key == "recipes":
            bases = [value] if isinstance(value, str) else value or []
        elif is_group and isinstance(value, str | list | None):
            entry = f"/{key}"
            if override.package is not None:
                entry += f"@{override.package}"
            if not override.is_add():
                entry = f"override {entry}"
            defaults[entry] = value
        else:
            OmegaConf.update(values, key, value, merge=True, force_add=True)
    return TypedWords(bases, defaults, values, again)


def without_searched(words: Sequence[str], loader_changed: bool) -> list[str]:
    """Return ``words`` without what a search decides, and without all keys of a changed loader."""
    kept: list[str] = []
    for word in words:
        key = word.lstrip("+~").split("=")[0]
        if key not in SEARCHED and not (loader_changed and key.startswith("loader.")):
            kept.append(word)
    return kept


def recipe_text(words: TypedWords, winner: Candidate | None, comments: Sequence[str]) -> str:
    """Return the YAML of a recipe. Without ``winner`` it has the typed settings."""
    if winner is not None:
        words = _with_winner(words, winner)
    lines = [f"{entry}: {_flow(value)}" for entry, value in words.defaults.items()]
    overrides = [line for line in lines if line.startswith("override ")]
    added = [line for line in lines if line not in overrides]
    bases = [f"/recipes/{base}" for base in words.bases]
    text = "# @package _global_\n"
    text += "".join(f"# {printable(comment)}\n" for comment in comments)
    text += "defaults:\n"
    for line in (*bases, *added, "_self_", *overrides):  # overrides come last
        text += f"  - {line}\n"
    if words.values:
        text += f"\n{OmegaConf.to_yaml(words.values)}"
    return text


def _with_winner(words: TypedWords, winner: Candidate) -> TypedWords:
    """Return the words with what a search has decided."""
    workers = {"num": winner.num_workers, "kind": winner.worker_kind, "start_method": None}
    decided: Config = {"workers": workers}
    if winner.depth:
        decided["loader"] = {"depth": winner.depth}
    defaults = {**words.defaults, "override /loader": winner.loader}
    return words._replace(defaults=defaults, values=OmegaConf.merge(words.values, decided))


def _flow(value: Any) -> str:
    """Return the YAML of a choice, or of several choices, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return value or "null"


def write_recipe(
    path: Path, text: str, wanted: Config, words: Sequence[str], grant: Grant, config_dir: str
) -> None:
    """Write a recipe that ``words`` name. ConfigError C198 if they do not compose to ``wanted``.

    An older recipe at ``path`` stays until the new one has been composed under another name.
    """
    trial = path.with_name(f"{path.stem}.{secrets.token_hex(4)}.yaml")
    own = f"recipes=tuned/{path.stem}"
    tried = [f"recipes=tuned/{trial.stem}" if word == own else word for word in words]
    with _written_for_now(trial, text):
        made, _ = composed(tried, grant, config_dir)
    differ = sorted(key for key in {*made, *wanted} if made.get(key) != wanted.get(key))
    if differ:
        what = f"a recipe cannot contain all typed words: {', '.join(differ)} would differ"
        fix = "put them into a recipe of your own first, and tune that"
        raise ConfigError(198, str(path), what, fix)
    write_text(path, text)


@contextmanager
def _written_for_now(path: Path, text: str) -> Generator[None]:
    """Write a file that is removed at the end of the block, also by a signal."""
    try:
        with undone(lambda _: path.unlink(missing_ok=True)):
            write_text(path, text)
            yield
    finally:
        path.unlink(missing_ok=True)


def check_name(name: str, bases: Sequence[str]) -> None:
    """Check that a recipe can have this name. ConfigError C197 if not."""
    where = f"name = {name[:100]}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        fix = "give up to 100 letters, digits, dots, dashes"
        raise ConfigError(197, where, "cannot be the name of a recipe", fix)
    if f"tuned/{name}" in bases:
        raise ConfigError(197, where, "the recipe would contain itself", "give another name=")
