"""Separate the keys of a command from the overrides of ``train``, and read their values."""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from framework.cli.arguments import option
from framework.errors import ConfigError

Number = TypeVar("Number", int, float)
CONFIG_DIR = ("--config-dir", "-cd")


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
    """Separate words ``key=value`` with a key in ``keys`` from the others.

    Raises:
        ConfigError: C104 if ``--config-dir`` does not name a folder.

    """
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


def read_flag(number: int, key: str, text: str) -> bool:
    """Return the value of a flag.

    Raises:
        ConfigError: The error ``number``, if the text is neither true nor false.

    """
    if text.lower() not in ("true", "false"):
        raise ConfigError(number, f"{key} = {text}", "is not a flag", "give true or false")
    return text.lower() == "true"


def read_number(
    number: int, key: str, text: str, kind: type[Number], least: float, most: float = math.inf
) -> Number:
    """Return a finite number from ``least`` to ``most``.

    Raises:
        ConfigError: The error ``number``, if the text is no such number.

    """
    with suppress(ValueError):
        value = kind(text)
        if least <= value <= most and math.isfinite(value):
            return value
    what = "is not a whole number in range" if kind is int else "is not a number in range"
    bounds = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
    raise ConfigError(number, f"{key} = {text}", what, f"give {bounds}")


def read_name(text: str) -> str | None:
    """Return a name without its quotation marks; None for null and for nothing."""
    return None if text in ("", "null") else text.strip("'\"")
