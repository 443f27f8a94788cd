"""Separate the keys of a command from the overrides of ``train``, and read their values."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.arguments import option
from framework.config.rule import Rule
from framework.errors import ConfigError

CONFIG_DIR = ("--config-dir", "-cd")


def config_flags(config_dir: str | None) -> list[str]:
    """Return ``--config-dir`` and its value, for a command to type; nothing without a folder."""
    if config_dir is None:
        return []
    return ["--config-dir", config_dir]


class CommandWords(NamedTuple):
    """A command line.

    Attributes:
        own: The texts of the command's keys.
        others: All other words, in order, without ``--config-dir``.
        config_dir: The folder that ``--config-dir`` names.
    """

    own: dict[str, str]
    others: list[str]
    config_dir: str | None


def split_words(arguments: Sequence[str], keys: Collection[str]) -> CommandWords:
    """Separate words ``key=value`` with a key in ``keys`` from the others. ConfigError C104."""
    config_dir = option(list(arguments), *CONFIG_DIR)
    if config_dir is not None and not Path(config_dir).is_dir():
        fix = "give a folder that holds recipes/NAME.yaml"
        raise ConfigError(104, f"--config-dir {config_dir}", "no such folder", fix)
    own: dict[str, str] = {}
    others: list[str] = []
    for previous, word in zip(["", *arguments], arguments, strict=False):
        key, equals, value = word.partition("=")
        if equals and key in keys:
            own[key] = value
        elif key not in CONFIG_DIR and previous not in CONFIG_DIR:
            others.append(word)
    return CommandWords(own, others, config_dir)


def read_keys(own: Mapping[str, str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the values of a command's keys. Raise the ConfigError of a key's rule."""
    return {key: rules[key].read(key, text) for key, text in own.items()}


def check_output(path: str | None, number: int) -> None:
    """Raise the ConfigError of this number if no file can be written to ``output=``."""
    if path is None:
        return
    place = Path(path).absolute()
    if not place.parent.is_dir():
        fix = "make the folder, or choose another path"
        raise ConfigError(number, f"output = {path}", "its folder does not exist", fix)
    if place.is_dir():
        raise ConfigError(number, f"output = {path}", "is a folder", "give the name of a file")
