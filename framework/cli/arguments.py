"""The words of a command line."""

import os
from collections.abc import Sequence

from framework.errors import ConfigError

MOST_WORDS, MOST_CHARACTERS, MOST_VALUES, DEEPEST = (
    1000,
    16 << 10,
    1000,
    40,
)  # Hydra's grammar takes a second for about twice as much


def option(arguments: list[str], *names: str) -> str | None:
    """The value of ``--name value`` or ``--name=value``."""
    for number, word in enumerate(arguments):
        for name in names:
            if word == name and number + 1 < len(arguments):
                return arguments[number + 1]
            if word.startswith(f"{name}="):
                return word.split("=", 1)[1]
    return None


def quoted(value: str) -> str:
    """A value as Hydra's override grammar takes it literally."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


TAKES_VALUE = (
    "--cfg",
    "-c",
    "--config-dir",
    "-cd",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--info",
    "-i",
)


def plain_words(arguments: list[str]) -> list[str]:
    """Those that are neither options, nor options' values, nor overrides: what a command is about, such as a store's path. The name of a
    file that is there is no override, whatever is in it.
    """
    pairs = zip(["", *arguments], arguments, strict=False)
    return [
        w for before, w in pairs if not w.startswith("-") and before not in TAKES_VALUE and ("=" not in w or os.path.exists(w))
    ]


def check_words(words: Sequence[str]) -> None:
    """ConfigError C128 for overrides that Hydra's grammar, or what it makes of them, would hang or break on."""
    overrides = [word for word in words if "=" in word and not os.path.exists(word[:4096])]
    if len(overrides) > MOST_WORDS:
        raise ConfigError(128, f"{len(overrides)} words", f"more than {MOST_WORDS:,} overrides", "put them into a recipe")
    for word in overrides:
        key, _, value = word.partition("=")
        values = sum(map(value.count, ",[{("))
        if len(word) > MOST_CHARACTERS or values > MOST_VALUES:
            what = f"{len(word):,} characters and {values:,} values, more than {MOST_CHARACTERS:,} and {MOST_VALUES:,}"
            raise ConfigError(128, f"{word[:40]}...", what, "put it into a file")
        if max(key.count("."), _depth(value)) > DEEPEST:
            raise ConfigError(128, f"{word[:40]}...", f"nested more than {DEEPEST} deep", "make it flatter")


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        deepest = max(deepest, depth)
    return deepest
