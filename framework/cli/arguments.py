"""The words of a command line."""

import json
import os
import re
from typing import Any

from framework.errors import ConfigError

TAKES_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--explain", "--package", "-p"),
    *("--info", "-i"),
)
MEANINGS = ("true", "false", "null", "nan", "inf")  # words that Hydra's grammar reads as values
NOT_HYDRAS = ("resume", "resume.run")
TEXTS = ("select", "input.select", "where")  # expressions, whatever letters these hold
# blocks whose name stands for their first key
SHORT = {"init": "weights"}
# choices of a group that have a key of their own
PLACED = {"data.val_transform": "transform@data.val_transform"}
# blocks of the user's, which need no + although no file has their names
_NAMED = re.compile(r"(metrics|watchers)(\.\w+)?=\{")
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@-]*")
# Letters that Hydra's grammar does not know in a bare value, or takes for calls.
_UNUSUAL = re.compile(r"[^\w.,:/=@+~$%*?|\\-]|[^\x00-\x7f]")


def option(arguments: list[str], *names: str) -> str | None:
    """Return the value of ``--name value`` or ``--name=value``."""
    for number, word in enumerate(arguments):
        for name in names:
            if word == name and number + 1 < len(arguments):
                return arguments[number + 1]
            if word.startswith(f"{name}="):
                return word.split("=", 1)[1]
    return None


def quoted(value: str) -> str:
    """Return a value as Hydra's override grammar takes it literally."""
    # Only backslashes before a quotation mark, or at the end, are special to Hydra.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value)
    trailing = escaped[len(escaped.rstrip("\\")) :]
    return f'"{escaped}{trailing}"'


def block_words(value: Any) -> str:
    """Return a plain value as Hydra's override grammar reads it, such as ``{a: [1, "x"]}``."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {block_words(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(block_words, value))}]"
    if isinstance(value, str):
        is_word = re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.ASCII) is not None
        if is_word and value.lower() not in MEANINGS:
            return value
        return quoted(value)
    return json.dumps(value)


def literal(word: str) -> str:
    """Quote the value of an override if Hydra's grammar cannot read it, as in ``x=Größe (1)``.

    Lists, blocks, references, quoted values and the names of files stay as they are.
    """
    word = long_word(word)
    if _NAMED.match(word):
        word = f"++{word}"
    key, equals, value = word.partition("=")
    if key in PLACED and value == "null":
        return f"~{PLACED[key]}"
    if key in PLACED and re.match(r"[\w,]+$", value):
        word = f"{PLACED[key]}={value}"
        key = PLACED[key]
    if not equals or not _KEY.fullmatch(key) or key in NOT_HYDRAS or os.path.exists(word[:4096]):
        return word
    if key in TEXTS and value and not value.startswith(("$", "'", '"')):
        return word if value in MEANINGS else f"{key}={quoted(value)}"
    if value.startswith(("[", "{", "$", "'", '"')) or "," in value or not _UNUSUAL.search(value):
        return word
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415  # takes 0.1 s to load
    from hydra.errors import HydraException  # noqa: PLC0415

    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return f"{key}={quoted(value)}"
    return word


def long_word(word: str) -> str:
    """Return an override with its whole key, such as ``init.weights=x.pt`` for ``init=x.pt``."""
    key, equals, value = word.partition("=")
    if not equals or key not in SHORT or value.startswith("{"):
        return word
    if os.path.exists(value):  # the directory of a run may have commas in its name
        value = quoted(value)
    return f"{key}.{SHORT[key]}={value}"


def plain_words(arguments: list[str]) -> list[str]:
    """Return what a command is about, such as a store's path: neither options nor overrides.

    The name of an existing file is no override, even with ``=`` in it.
    """
    return [word for word in without_options(arguments) if "=" not in word or os.path.exists(word)]


def plain_words_alone(arguments: list[str], key: str) -> list[str]:
    """Return the plain words, which take the place of ``key``. ConfigError C100 beside ``key=``."""
    plain = plain_words(arguments)
    if plain and any(word.startswith(f"{key}=") for word in arguments if word not in plain):
        raise ConfigError(100, " ".join(plain), f"stands beside {key}=", "give one or the other")
    return plain


def with_store(arguments: list[str], command: str, key: str = "store") -> list[str]:
    """Return the words with ``store=`` for the plain word, which is the path of a store.

    ``key`` may be another key of a path. ConfigError C100 for several plain words. ``-sc``
    completes words, and is left alone.
    """
    if arguments[:1] == ["-sc"]:
        return arguments
    plain = plain_words_alone(arguments, key)
    if len(plain) > 1:
        fix = f"{command} one at a time"
        raise ConfigError(100, " ".join(plain), f"names more than one {key}", fix)
    overrides = [word for word in arguments if word not in plain]
    return [*overrides, *(f"{key}={quoted(word)}" for word in plain)]


def with_output(arguments: list[str]) -> list[str]:
    """Return the words with ``output.path=`` for ``output=``, which Hydra takes for a group."""
    return [re.sub(r"^output=", "output.path=", word) for word in arguments]


def without_options(arguments: list[str]) -> list[str]:
    """Return the words that are neither options nor options' values."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [w for before, w in pairs if not w.startswith("-") and before not in TAKES_VALUE]
