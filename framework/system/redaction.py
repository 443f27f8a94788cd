"""Values from the environment, which the files of a run name and never hold.

What ``${oc.env:NAME}`` stands for may be a secret. Whoever reads it calls ``note``, and whoever
writes a file of a run or sends a part of it calls ``redacted``.
"""

import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

# Shorter values are no secrets, and are part of every other word.
LEAST_LETTERS = 4
REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)\}")

# Keys whose values are Paceline's own words, such as train and finished.
KEPT = ("split", "status", "config", "report", "begin", "_target_")

_names: set[str] = set()


def note(names: Iterable[str]) -> None:
    """Remember variables whose values were read."""
    _names.update(names)


def noted() -> list[str]:
    """Return the variables whose values were read."""
    return sorted(_names)


def redacted(value: Any) -> Any:
    """Return plain values with ``${oc.env:NAME}`` in place of what was read. Keys stay."""
    if isinstance(value, dict):
        return {key: item if key in KEPT else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    values = {name: os.environ.get(name, "") for name in _names}
    for name in sorted(values, key=lambda name: -len(values[name])):
        secret = values[name]
        if len(secret) >= LEAST_LETTERS:
            path = os.path.normpath(secret)
            forms = (secret, repr(secret)[1:-1], " ".join(secret.split()), quote(secret, safe=""))
            for form in (*forms, *[path] * (len(path) >= LEAST_LETTERS)):
                value = value.replace(form, f"${{oc.env:{name}}}")
    return value


def restored(text: str) -> str:
    """Return a text with the values that ``redacted`` took out, where the variables are set."""
    return REFERENCE.sub(lambda match: os.environ.get(match[1], match[0]), text)
