"""The values that an option may have, and the error for every other value."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from framework.errors import ConfigError, did_you_mean

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list[str]: "a list of texts",
    list[int]: "a list of whole numbers",
    dict: "a block of keys",
    NoneType: "null",
}


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
    """

    kind: Any
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Sequence[str] = ()
    means: str = ""
    number: int = 101

    @property
    def kinds(self) -> tuple[Any, ...]:
        return self.kind.__args__ if isinstance(self.kind, UnionType) else (self.kind,)

    @property
    def words(self) -> str:
        """What a value must be, such as ``a whole number from 0 to 9, or null``."""
        words = (
            [self.means]
            if self.means
            else [KINDS[kind] for kind in self.kinds if kind is not NoneType]
        )
        if self.choices and not self.means:
            words = list(self.choices)
        text = _listed(words) + self._limits()
        if NoneType in self.kinds:
            text += ", or null"
        return text

    def _limits(self) -> str:
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f" from {self.least:g} to {self.most:g}"
        limits = {"of at least": self.least, "above": self.above, "below": self.below}
        known = [f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit)]
        return " " + " and ".join(known) if known else ""

    def is_kind(self, value: Any) -> bool:
        """Return whether a value has the type. Only bool takes true and false."""
        if isinstance(value, list):
            items = [get_args(kind)[0] for kind in self.kinds if get_origin(kind) is list]
            return any(all(isinstance(item, kind) for item in value) for kind in items)
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, int) and float in self.kinds:
            return True
        return isinstance(value, tuple(kind for kind in self.kinds if get_origin(kind) is None))

    def fits(self, value: Any) -> bool:
        """Return whether an option may have this value."""
        if not self.is_kind(value):
            return False
        if isinstance(value, str) and self.choices:
            return value in self.choices
        if isinstance(value, int | float):
            return self.least <= value <= self.most and self.above < value < self.below
        return True

    def check(self, where: str, value: Any) -> None:
        """Raise the ConfigError of this option for a value that it cannot have."""
        if not self.fits(value):
            raise self.error(where, value)

    def error(self, where: str, value: Any) -> ConfigError:
        """Return the error for a value that the option cannot have."""
        if self._fits_as_text(value):
            decoded = f"""'{where}="${{oc.decode:${{oc.env:NAME}}}}"'"""
            fix = f"leave out its quotes, or decode a variable: {decoded}"
            what = f"must be {self.words}, and is a text"
            return ConfigError(self.number, f'{where} = "{value}"'[:200], what, fix)
        what = f"must be {self.words}{did_you_mean(str(value), self.choices)}"
        return ConfigError(self.number, f"{where} = {value}"[:200], what, "correct it")

    def _fits_as_text(self, value: Any) -> bool:
        """Return whether a value is a text, such as "0.5", that holds a value that fits."""
        with suppress(ValueError, RecursionError):
            return isinstance(value, str) and self.fits(json.loads(value))
        return False

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


def check_values(config: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = "") -> None:
    """Check that every key with a rule is there and has a value that fits."""
    for key, rule in rules.items():
        rule.check(f"{prefix}{key}", config.get(key))
        if key not in config:
            raise ConfigError(101, f"{prefix}{key} = null", "was taken away", "leave it in")


def check_known(keys: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    """Raise ConfigError C102 for the first key that nobody reads."""
    for key, value in keys.items():
        if key not in known:
            where = f"{prefix}.{key} = {value}".removeprefix(".")
            what = f"no such key{did_you_mean(key, known, prefix)}"
            raise ConfigError(102, where[:200], what, "correct or remove it")


def _listed(words: Sequence[str]) -> str:
    """Join words with commas and a last ``or``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"
