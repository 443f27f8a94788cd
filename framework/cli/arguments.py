"""The words of a command line."""

import os
import re
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
    # it takes a backslash for one of its own only before a quotation mark
    return (
        '"'
        + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value)
        + '"'
    )


_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@-]*")
# letters that Hydra's grammar does not know in a bare value, or takes for calls
_UNUSUAL = re.compile(r"[^\w.,:/=@+~$%*?|\\-]|[^\x00-\x7f]")
_AS_IT_STANDS = ("resume", "resume.run")  # not read by Hydra


def literal(word: str) -> str:
    """An override whose bare value Hydra's grammar cannot read, with its value quoted: folders have names such as ``Größe (1)``. What begins
    like a list, a dictionary, an interpolation or a quotation, and lists of values, stay as they are.
    """
    key, equals, value = word.partition("=")
    bare = (
        equals
        and _KEY.fullmatch(key)
        and key not in _AS_IT_STANDS
        and not os.path.exists(word[:4096])
    )
    if (
        not bare
        or value[:1] in ("", "[", "{", "$", "'", '"')
        or "," in value
        or not _UNUSUAL.search(value)
    ):
        return word
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415  # takes 0.1 s to load
    from hydra.errors import HydraException  # noqa: PLC0415

    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return f"{key}={quoted(value)}"
    return word


TAKES_VALUE = (
    "--cfg",
    "-c",
    "--config-dir",
    "-cd",
    "--explain",
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
        w
        for before, w in pairs
        if not w.startswith("-")
        and before not in TAKES_VALUE
        and ("=" not in w or os.path.exists(w))
    ]


def without_options(arguments: list[str]) -> list[str]:
    """The overrides: words that are neither options nor options' values."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [
        word for before, word in pairs if not word.startswith("-") and before not in TAKES_VALUE
    ]


def check_words(words: Sequence[str]) -> None:
    """ConfigError C128 for overrides that Hydra's grammar, or what it makes of them, would hang or break on."""
    overrides = [word for word in words if "=" in word and not os.path.exists(word[:4096])]
    if len(overrides) > MOST_WORDS:
        raise ConfigError(
            128,
            f"{len(overrides)} words",
            f"more than {MOST_WORDS:,} overrides",
            "put them into a recipe",
        )
    for word in overrides:
        key, _, value = word.partition("=")
        values = sum(map(value.count, ",[{("))
        if len(word) > MOST_CHARACTERS or values > MOST_VALUES:
            what = f"{len(word):,} characters and {values:,} values, more than {MOST_CHARACTERS:,} and {MOST_VALUES:,}"
            raise ConfigError(128, f"{word[:40]}...", what, "put it into a file")
        if max(key.count("."), _depth(value)) > DEEPEST:
            raise ConfigError(
                128, f"{word[:40]}...", f"nested more than {DEEPEST} deep", "make it flatter"
            )


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        deepest = max(deepest, depth)
    return deepest
