"""The values that an option may have, and the error for every other value.

The line of an option in ``conf/`` is its only home: ``seed: 0  # int >= 0: for the weights`` has
its name, default, type and help. A type is one of ``TYPES``, or a word that may be given, or
several of these with `` | `` between them. Behind a number stand its limits: ``int >= 1 and <= 9``.
Behind the type stands the number of the error, if it is not C101: ``fork | spawn [C107]: ...``.
"""

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Any, NamedTuple

from framework.config.paths import CONF
from framework.errors import ConfigError, did_you_mean

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list[str]: "a list of texts",
    list[int]: "a list of whole numbers",
    list[dict]: "a list of blocks",
    dict: "a block of keys",
    NoneType: "null",
}
TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "text": str,
    "block": dict,
    "null": NoneType,
    "[int]": list[int],
    "[text]": list[str],
    "[block]": list[dict],
}
LIMITS = {">=": "least", "<=": "most", ">": "above", "<": "below"}
PART = re.compile(r"([\w\[\]]+)((?: (?:and )?[<>]=? [\d.]+)*)")  # of a type
LINE = re.compile(r"( *)(\w+):(?:.*?\s# (.*)|.*)")  # an option, with its comment
GONE = object()


class Rule(NamedTuple):
    """The values of one option. Numbers are finite, whatever their limits.

    Attributes:
        kind: The type, or a union of types.
        least: The smallest number.
        most: The largest number.
        above: Numbers must be greater than it.
        below: Numbers must be less than it.
        choices: The only texts that are allowed, if any.
        means: What the values are, for messages; empty if the type says it.
        number: Of the ConfigError for every other value.
        help: What the option does, for messages.
    """

    kind: Any
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Sequence[str] = ()
    means: str = ""
    number: int = 101
    help: str = ""

    @property
    def kinds(self) -> tuple[Any, ...]:
        return self.kind.__args__ if isinstance(self.kind, UnionType) else (self.kind,)

    @property
    def words(self) -> str:
        """What a value must be, such as ``a whole number from 0 to 9, or null``."""
        limits = {"of at least": self.least, "above": self.above, "below": self.below}
        known = [f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit)]
        limit = " " + " and ".join(known) if known else ""
        if math.isfinite(self.least) and math.isfinite(self.most):
            limit = f" from {self.least:g} to {self.most:g}"
        if self.means:
            names = [self.means + limit]
        else:
            words = {**KINDS, int: KINDS[int] + limit, float: KINDS[float] + limit}
            plain = [kind for kind in self.kinds if kind is not NoneType]
            names = [words[kind] for kind in plain if not (kind is str and self.choices)]
            names += self.choices
        text = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        if NoneType in self.kinds:
            text += ", or null"
        if self.help and self.kinds[0] in (str, dict, list[str], list[int]) and not self.choices:
            text += f" ({self.help.partition('; ')[0]})"  # the type says little
        return text

    def is_kind(self, value: Any) -> bool:
        """Return whether a value has the type. Only bool takes true and false."""
        if isinstance(value, list):
            lists = [kind.__args__[0] for kind in self.kinds if hasattr(kind, "__args__")]
            return any(all(isinstance(item, kind) for item in value) for kind in lists)
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, int) and float in self.kinds:
            return True
        return isinstance(value, tuple(kind for kind in self.kinds if type(kind) is type))

    def fits(self, value: Any) -> bool:
        """Return whether an option may have this value."""
        if not self.is_kind(value):
            return False
        if isinstance(value, str) and self.choices:
            return value in self.choices
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.least <= value <= self.most and self.above < value < self.below
        return True

    def check(self, where: str, value: Any) -> None:
        """Raise the ConfigError of this option for a value that it cannot have."""
        if not self.fits(value):
            raise self.error(where, value)

    def error(self, where: str, value: Any) -> ConfigError:
        """Return the error for a value that the option cannot have."""
        with suppress(ValueError, RecursionError):
            if isinstance(value, str) and self.fits(json.loads(value)):  # such as "0.5"
                decoded = f"""'{where}="${{oc.decode:${{oc.env:NAME}}}}"'"""
                fix = f"leave out its quotes, or decode a variable: {decoded}"
                what = f"must be {self.words}, and is a text"
                return ConfigError(self.number, f'{where} = "{value}"'[:200], what, fix)
        what = f"must be {self.words}{did_you_mean(str(value), self.choices)}"
        return ConfigError(self.number, f"{where} = {value}"[:200], what, "correct it")

    def read(self, where: str, text: str) -> Any:
        """Return the value of a text on the command line. Raise the ConfigError of this option."""
        value: Any = text
        if re.fullmatch(r"'[^']*'|\"[^\"]*\"", text):
            value = text[1:-1]
        if NoneType in self.kinds and value in ("", "null"):
            value = None
        elif self.kind is bool:
            value = {"true": True, "false": False}.get(text.lower(), text)
        for kind in (int, float):
            if kind in self.kinds and isinstance(value, str):
                with suppress(ValueError):
                    value = kind(value)
        if not self.fits(value):
            raise self.error(where, text)
        return value


@cache
def option_rules(name: str) -> dict[str, Rule]:
    """Return the rules of the options in ``conf/NAME.yaml``, or of all choices of a group.

    Keys are dotted. Those of a group begin with its name.
    """
    rules: dict[str, Rule] = {}
    for path in (CONF / f"{name}.yaml", *sorted((CONF / name).glob("*.yaml"))):
        if not path.is_file():
            continue
        blocks = [(-1, name)] if path.parent != CONF else []  # around the line, with their indent
        text = path.read_text(encoding="utf-8").partition("\nhydra:")[0]
        for match in filter(None, map(LINE.fullmatch, text.splitlines())):
            indent, key, comment = len(match[1]), match[2], match[3]
            while blocks and blocks[-1][0] >= indent:
                blocks.pop()
            blocks.append((indent, key))
            if comment and (rule := rule_of(comment)):
                rules[".".join(block for _, block in blocks)] = rule
    return rules


def rule_of(comment: str) -> Rule | None:
    """Return the rule of an option's comment; None if it begins with no type."""
    text, _, explained = comment.partition(": ")
    text, _, number = text.partition(" [C")
    parts = list(filter(None, map(PART.fullmatch, text.split(" | "))))
    names = [part[1] for part in parts]
    is_word = len(names) == 1 and (names[0] not in TYPES or names[0] == "null")
    if len(parts) <= text.count(" | ") or is_word:
        return None
    limits: dict[str, Any] = {
        LIMITS[sign]: float(limit)
        for part in parts
        for sign, limit in re.findall(r"([<>]=?) (\S+)", part[2])
    }
    kind = reduce(operator.or_, [TYPES.get(name, str) for name in names])
    choices = tuple(name for name in names if name not in TYPES)
    error = int(number.rstrip("]") or 101)
    return Rule(kind, **limits, choices=choices, number=error, help=explained)


def check_values(config: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = "") -> None:
    """Check that every key with a rule is there and has a value that fits. Keys may be dotted."""
    for key, rule in rules.items():
        value: Any = config
        for name in key.split("."):
            value = value.get(name, GONE) if isinstance(value, Mapping) else GONE
        rule.check(f"{prefix}{key}", None if value is GONE else value)
        if value is GONE:
            raise ConfigError(101, f"{prefix}{key} = null", "was taken away", "leave it in")


def check_known(keys: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    """Raise ConfigError C102 for the first key that nobody reads."""
    for key, value in keys.items():
        if key not in known:
            where = f"{prefix}.{key} = {value}".removeprefix(".")
            what = f"no such key{did_you_mean(key, known, prefix)}"
            raise ConfigError(102, where[:200], what, "correct or remove it")
